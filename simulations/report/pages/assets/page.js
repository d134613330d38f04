// What a page does beyond its text: figures that answer, tables that sort and filter, slides. Without it everything is
// shown as it was written. The figures' data is JSON in the page; nothing is requested.
(() => {
  "use strict";
  const night = matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const UNITS = ["B", "kB", "MB", "GB", "TB"];
  const SHAPES = { o: "circle", s: "rect", D: "rectRot", "^": "triangle", v: "triangle", "<": "triangle", ">": "triangle",
    "*": "star", X: "crossRot", x: "crossRot", P: "cross", p: "rectRounded", h: "rectRounded", 8: "circle", d: "rectRot" };
  // On a dark ground the black would be the grey, the light blue the blue, and dark ones each other.
  const NIGHT = { "#111111": "#e6e8ea", "#2a9bdc": "#a5dcff", "#7010d0": "#b858e8", "#581058": "#e8d010", "#102888": "#40e8a0" };
  const TURNS = { v: 180, "<": 270, ">": 90 };
  const number = (value) => value !== null && value !== undefined && Number.isFinite(value);
  let count = 0;

  function make(tag, more = {}, ...children) {
    const one = document.createElement(tag);
    for (const [name, value] of Object.entries(more)) {
      if (name in one && name !== "list") one[name] = value; else one.setAttribute(name, value);
    }
    one.append(...children);
    return one;
  }

  // Colours are made for a white ground; on a dark one they become lighter until they are seen.
  function shade(colour) {
    if (!night.matches || !/^#[0-9a-f]{6}$/i.test(colour)) return colour;
    if (NIGHT[colour]) return NIGHT[colour];
    let parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    const light = (some) => some.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
      .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    while ((light(parts) + 0.05) / 0.0588 < 4.5) parts = parts.map((c) => Math.min(255, c + (255 - c) * 0.12 + 1));
    return "#" + parts.map((c) => Math.round(c).toString(16).padStart(2, "0")).join("");
  }

  function says(value, axis) {
    const named = (axis.ticks || []).find(([at]) => at === value);
    if (named) return named[1].split("\n").join(" ");
    let unit = 0;
    if (axis.unit === "bytes") for (; Math.abs(value) >= 1000 && unit < 4; unit++) value /= 1000;
    const text = value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9)
      ? value.toExponential(2).replace("e+", "e") : Number(value.toPrecision(4)).toLocaleString("en");
    return text + (axis.unit === "bytes" ? " " + UNITS[unit] : axis.unit === "%" ? " %" : "");
  }

  function label(name, across) {
    const words = name.split("\n");
    if (across || name.length < 30) return words;
    return words.flatMap((line) => line.match(/.{1,28}(?=\s|$)|.{1,28}/g).map((part) => part.trim()));
  }

  function scale(chart, axis, name, log) {
    const ink = css("dim"), named = axis.ticks && axis.ticks.length && !log.changed[name];
    const at = chart.series.filter((one) => one.kind === (name === "y" ? "level" : "upright")).map((one) => one[name][0]);
    const bars = chart.series.some((one) => one.kind === "bar");
    const found = {
      type: log[name] ? "logarithmic" : "linear", reverse: Boolean(axis.down),
      title: { display: Boolean(axis.label), text: axis.label || "", color: ink },
      grid: { color: css("rule") }, border: { color: css("bar") }, stacked: bars,
      ticks: {
        color: ink, maxRotation: 0, autoSkip: !named, autoSkipPadding: 14, maxTicksLimit: name === "x" ? 9 : 7,
        precision: axis.whole ? 0 : undefined,
        callback: (value) => named ? label((axis.ticks.find(([place]) => place === value) || [0, ""])[1], name === "x")
          : says(value, axis.unit === "%" ? { ...axis, unit: "" } : axis),
      },
      afterBuildTicks: (one) => {
        if (named) {
          one.ticks = axis.ticks.map(([value]) => ({ value })).filter(({ value }) => value >= one.min && value <= one.max);
        } else if (log[name]) {
          const span = Math.log10(one.max / one.min), keep = span > 3 ? [1] : span > 1.2 ? [1, 3] : span > 0.9 ? [1, 2, 5] : [1, 2, 3, 5, 7];
          const first = (value) => value / 10 ** Math.floor(Math.log10(value) + 1e-9);
          const few = one.ticks.filter(({ value }) => keep.some((digit) => Math.abs(first(value) - digit) < 1e-6));
          if (few.length > 1) one.ticks = few;
          else { // less than a decade: even steps
            const rough = (one.max - one.min) / (name === "x" ? 4 : 6), power = 10 ** Math.floor(Math.log10(rough));
            const step = [1, 2, 5, 10].map((digit) => digit * power).find((wide) => wide >= rough * 0.999);
            const from = Math.ceil(one.min / step - 1e-9), to = Math.floor(one.max / step + 1e-9);
            one.ticks = Array.from({ length: to - from + 1 }, (_, at) => ({ value: (from + at) * step }));
          }
        }
      },
    };
    if (number(axis.low)) found.min = axis.low;
    if (number(axis.high)) found.max = axis.high;
    if (number(axis.low) && number(axis.high)) found.offset = false;
    const ends = chart.series.flatMap((one) => name === "y" ? [...(one.low || []), ...(one.high || [])]
      : [...(one.left || []), ...(one.right || [])]).concat(at).filter((value) => number(value) && (!log[name] || value > 0));
    const all = chart.series.flatMap((one) => one[name] || []).filter((value) => number(value) && (!log[name] || value > 0));
    const [low, high] = [Math.min(...all, ...ends), Math.max(...all, ...ends)];
    if (ends.length || log[name]) {
      // A mark at the edge would be half a mark.
      const apart = log[name] && high > low ? Math.min(1.3, (high / low) ** 0.04 + 0.005) : at.length ? 1.03 : 1;
      found.suggestedMin = low / apart;
      found.suggestedMax = high * apart;
    }
    if (!log[name] && name === "y" && low >= 0 && low < high / 2) found.beginAtZero = true;
    const ended = number(axis.low) && number(axis.high);
    if (!log[name] && name === "y" && !named && !bars && !ended && !(axis.unit === "%" && high > 90)) found.grace = "4%";
    return found;
  }

  // The library draws the first one last; here, as on paper, a later one covers those before.
  function dataset(one, at) {
    const colour = shade(one.colour || "#0072b2"), bar = one.kind === "bar";
    const points = (one.x || []).map((x, at) => ({
      x, y: (one.y || [])[at], low: (one.low || [])[at], high: (one.high || [])[at],
      left: (one.left || [])[at], right: (one.right || [])[at], words: (one.words || [])[at],
    })).filter((point) => number(point.x) && number(point.y));
    const lonely = points.length === 1 && !one.marker && one.kind !== "band";
    return {
      type: bar ? "bar" : "line", label: one.name || "", data: one.kind === "level" || one.kind === "upright" ? [] : points,
      given: one, borderColor: colour, borderWidth: bar ? 0 : 2, borderDash: one.dash,
      showLine: one.line !== false && one.kind !== "band", // a band's line would cover the dashes of its curve
      stepped: one.steps ? "before" : false, backgroundColor: bar || one.filled !== false ? colour : css("paper"),
      pointStyle: SHAPES[one.marker] || "circle", pointRotation: TURNS[one.marker] || 0, pointRadius: one.marker || lonely ? 5 : 0,
      pointHoverRadius: 6, pointHitRadius: 12, pointBorderWidth: 2, categoryPercentage: 1, barPercentage: 0.96,
      tension: 0, spanGaps: true, order: bar ? 2 : 1 / (at + 1), clip: 8, maxBarThickness: 90,
    };
  }

  const bars = (chart) => chart.data.datasets.some((set) => set.given.kind === "bar");

  // A line across, or up: below the lines of a chart, and on its bars, which would hide it.
  function reference(chart, set) {
    const { ctx, chartArea: area, scales: { x, y } } = chart, one = set.given, across = one.kind === "level";
    const place = across ? y.getPixelForValue(one.y[0]) : x.getPixelForValue(one.x[0]);
    ctx.save();
    ctx.beginPath();
    ctx.rect(area.left, area.top, area.width, area.height);
    ctx.clip();
    ctx.strokeStyle = bars(chart) ? css("ink") : set.borderColor;
    ctx.lineWidth = 1.5;
    ctx.setLineDash(set.borderDash);
    ctx.beginPath();
    if (across) { ctx.moveTo(area.left, place); ctx.lineTo(area.right, place); } else { ctx.moveTo(place, area.top); ctx.lineTo(place, area.bottom); }
    ctx.stroke();
    ctx.restore();
  }

  // The name of a reference is on its line, on a halo of the ground: a legend would be read twice.
  function named(chart, one) {
    const { ctx, chartArea: area, scales: { x, y } } = chart, across = one.kind === "level";
    const place = across ? y.getPixelForValue(one.y[0]) : x.getPixelForValue(one.x[0]);
    if (across ? place < area.top - 1 || place > area.bottom + 1 : place < area.left - 1 || place > area.right + 1) return;
    const left = !across && place < (area.left + area.right) / 2;
    const at = across ? [area.right - 4, place - area.top > 20 ? place - 5 : place + 15] : [place + (left ? 5 : -5), area.top + 13];
    ctx.save();
    ctx.font = "12px system-ui, sans-serif";
    ctx.textAlign = left ? "left" : "right";
    ctx.lineWidth = 4;
    ctx.lineJoin = "round";
    ctx.strokeStyle = css("paper");
    ctx.fillStyle = css("dim");
    ctx.strokeText(one.name, ...at);
    ctx.fillText(one.name, ...at);
    ctx.restore();
  }

  // Bands, error bars, lines across and a note: what the library has no kind for.
  const MORE = {
    id: "more",
    beforeDatasetsDraw(chart) {
      const { ctx, chartArea: area, scales: { x, y } } = chart;
      ctx.save();
      ctx.beginPath();
      ctx.rect(area.left, area.top, area.width, area.height);
      ctx.clip();
      chart.data.datasets.forEach((set, at) => {
        const one = set.given;
        if (!chart.isDatasetVisible(at)) return;
        ctx.strokeStyle = set.borderColor;
        ctx.lineWidth = 1.5;
        if (one.kind === "level" || one.kind === "upright") {
          if (!bars(chart)) reference(chart, set);
        } else if (one.kind === "band") {
          ctx.setLineDash([]);
          ctx.fillStyle = set.borderColor + "2e";
          ctx.beginPath();
          set.data.forEach((point) => ctx.lineTo(x.getPixelForValue(point.x), y.getPixelForValue(point.low)));
          [...set.data].reverse().forEach((point) => ctx.lineTo(x.getPixelForValue(point.x), y.getPixelForValue(point.high)));
          ctx.fill();
        } else {
          ctx.setLineDash([]);
          set.data.forEach((point) => {
            const [px, py] = [x.getPixelForValue(point.x), y.getPixelForValue(point.y)];
            ctx.beginPath();
            if (number(point.low) && number(point.high)) {
              const [a, b] = [point.low, point.high].map((value) => y.getPixelForValue(value));
              ctx.moveTo(px, a); ctx.lineTo(px, b);
              for (const end of [a, b]) { ctx.moveTo(px - 4, end); ctx.lineTo(px + 4, end); }
            }
            if (number(point.left) && number(point.right)) {
              const [a, b] = [point.left, point.right].map((value) => x.getPixelForValue(value));
              ctx.moveTo(a, py); ctx.lineTo(b, py);
              for (const end of [a, b]) { ctx.moveTo(end, py - 4); ctx.lineTo(end, py + 4); }
            }
            ctx.stroke();
          });
        }
      });
      ctx.restore();
    },
    afterDatasetsDraw(chart) {
      if (bars(chart)) chart.data.datasets.forEach((set, at) => {
        if (["level", "upright"].includes(set.given.kind) && chart.isDatasetVisible(at)) reference(chart, set);
      });
    },
    afterDraw(chart) {
      chart.data.datasets.forEach((set, at) => { if (set.given.direct && chart.isDatasetVisible(at)) named(chart, set.given); });
      if (!chart.given.note || chart.data.datasets.some((set) => set.data.length)) return;
      const { ctx, chartArea: area } = chart;
      ctx.save();
      ctx.fillStyle = css("alarm");
      ctx.textAlign = "center";
      ctx.font = "600 15px system-ui, sans-serif";
      ctx.fillText(chart.given.note, (area.left + area.right) / 2, (area.top + area.bottom) / 2);
      ctx.restore();
    },
  };

  function lines(item, given) {
    const point = item.raw, ends = (a, b, axis) => number(a) && number(b) ? ` (${says(a, axis)} to ${says(b, axis)})` : "";
    const value = given.y.ticks && given.y.ticks.length ? says(point.x, given.x) : says(point.y, given.y);
    const name = item.dataset.label ? item.dataset.label + ": " : "";
    return name + value + ends(point.low, point.high, given.y) + ends(point.left, point.right, given.x)
      + (point.words ? ", " + point.words : "");
  }

  function draw(canvas, given, log, hidden) {
    const joined = given.series.some((one) => one.line !== false && ["line", "bar", undefined].includes(one.kind)) && !(given.y.ticks || []).length;
    const chart = new Chart(canvas, {
      data: { datasets: given.series.map(dataset) }, plugins: [{ id: "given", beforeInit: (own) => { own.given = given; } }, MORE],
      options: {
        animation: false, responsive: true, maintainAspectRatio: false,
        interaction: { mode: "nearest", axis: joined ? "x" : "xy", intersect: false },
        scales: { x: scale(given, given.x, "x", log), y: scale(given, given.y, "y", log) },
        layout: { padding: { right: 10, top: 6 } }, font: { size: 13 },
        plugins: {
          legend: { display: false },
          tooltip: {
            filter: (item) => item.dataset.given.kind !== "band", usePointStyle: true, boxPadding: 4,
            itemSort: (a, b) => a.datasetIndex - b.datasetIndex,
            callbacks: {
              title: (items) => !items.length ? "" : given.y.ticks && given.y.ticks.length ? says(items[0].raw.y, given.y)
                : [given.x.label, says(items[0].raw.x, given.x)].filter(Boolean).join(": "),
              label: (item) => lines(item, given),
            },
          },
          zoom: { zoom: { mode: "xy", drag: { enabled: true, threshold: 8, backgroundColor: "#0072b22e" } } },
        },
      },
    });
    chart.data.datasets.forEach((set, at) => chart.setDatasetVisibility(at, !hidden.has(set.label)));
    chart.update();
    return chart;
  }

  // Left and right go from place to place, as a pointer would; the values are also said aloud.
  function walk(state, spoken, event) {
    const { chart } = state, step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") { chart.setActiveElements([]); chart.tooltip.setActiveElements([], { x: 0, y: 0 }); chart.update(); return; }
    if (!step) return;
    event.preventDefault();
    const shown = chart.data.datasets.flatMap((set, datasetIndex) => set.given.kind === "band" || !chart.isDatasetVisible(datasetIndex)
      ? [] : set.data.map((point, index) => ({ datasetIndex, index, point })));
    const places = [...new Set(shown.map((one) => one.point.x))].sort((a, b) => a - b);
    if (!places.length) return;
    state.at = Math.max(0, Math.min(places.length - 1, (state.at ?? (step > 0 ? -1 : places.length)) + step));
    const active = shown.filter((one) => one.point.x === places[state.at]);
    chart.setActiveElements(active);
    chart.tooltip.setActiveElements(active, { x: 0, y: 0 });
    chart.update();
    const words = active.map((one) => lines({ raw: one.point, dataset: chart.data.datasets[one.datasetIndex] }, chart.given));
    spoken.textContent = [chart.given.x.label || "", says(places[state.at], chart.given.x), ...words].join("; ");
  }

  if (typeof Chart !== "undefined") Object.assign(Chart.defaults.font, { family: 'system-ui, "Segoe UI", Roboto, sans-serif', size: 12 });
  const drawn = new Set();

  function panel(place, given, hidden) {
    const still = place.querySelector("svg.still"), title = place.querySelector(".title");
    const positive = (name, ends) => !(given[name].ticks || []).length && !given.series.some((one) => one.kind === "bar")
      && given.series.every((one) => [name, ...ends].every((key) => (one[key] || []).every((value) => !number(value) || value > 0)));
    const log = { x: Boolean(given.x.log), y: Boolean(given.y.log), changed: {} };
    const canvas = make("canvas", { tabIndex: 0, role: "img", "aria-label": (still ? still.getAttribute("aria-label") : given.title) + " Left and right keys read the values." });
    const spoken = make("p", { className: "hidden", "aria-live": "polite" });
    const box = make("div", { className: "canvas" }, canvas);
    box.style.height = given.height + "px";
    const state = { chart: null, at: undefined };
    const again = () => { if (state.chart) state.chart.destroy(); state.chart = draw(canvas, given, log, hidden); };
    const button = (text, says, click, pressed) => {
      const one = make("button", { type: "button", textContent: text, title: says, "aria-label": `${says}: ${given.title}` });
      if (pressed !== undefined) one.setAttribute("aria-pressed", pressed);
      one.addEventListener("click", () => click(one));
      return one;
    };
    const logs = [["y", ["low", "high"]], ["x", ["left", "right"]]].filter(([name, ends]) => log[name] || positive(name, ends)).map(([name]) =>
      button("log " + name, `Logarithmic ${name} axis`, (one) => {
        log[name] = !log[name];
        log.changed[name] = log[name] !== Boolean(given[name].log);
        one.setAttribute("aria-pressed", log[name]);
        again();
      }, log[name]));
    const controls = make("span", { className: "controls" }, ...logs,
      button("+", "Zoom in", () => state.chart.zoom(1.4)), button("\u2212", "Zoom out", () => state.chart.zoom(0.7)),
      button("reset", "Show everything", () => state.chart.resetZoom()));
    title.append(controls);
    place.append(box, spoken);
    canvas.addEventListener("keydown", (event) => walk(state, spoken, event));
    again();
    const one = { place, again, hide: () => {
      state.chart.data.datasets.forEach((set, at) => state.chart.setDatasetVisibility(at, !hidden.has(set.label)));
      state.chart.update();
    } };
    drawn.add(one);
    return one;
  }

  function toggles(list, panels, hidden) {
    for (const item of list.querySelectorAll("li")) {
      const name = item.dataset.name, button = make("button", { type: "button", "aria-pressed": true, title: "Show or hide" });
      button.append(...item.childNodes);
      item.append(button);
      button.addEventListener("click", () => {
        if (!hidden.delete(name)) hidden.add(name);
        button.setAttribute("aria-pressed", !hidden.has(name));
        panels.forEach((one) => one.hide());
      });
    }
  }

  function recolour(root) {
    for (const one of root.querySelectorAll(".dot")) {
      one.style.background = shade(one.dataset.colour);
    }
    for (const one of root.querySelectorAll(".keys svg *")) {
      for (const name of ["stroke", "fill"]) {
        const first = one.dataset[name] ?? one.getAttribute(name);
        if (first && first !== "none") { one.dataset[name] = first; one.setAttribute(name, first === "#ffffff" ? css("paper") : shade(first)); }
      }
    }
  }

  function figure(place) {
    const all = JSON.parse(place.querySelector("script[type='application/json']").textContent);
    const hidden = new Set(), places = [...place.querySelectorAll(".panel")];
    place.classList.add("live");
    const panels = places.map((one, at) => panel(one, all[at], hidden));
    place.querySelectorAll(".keys").forEach((list) => toggles(list, panels, hidden));
  }

  // Tables: a click on a heading sorts the rows of each group; numbers by their values, the rest as words.
  const value = (row, at) => {
    const cell = row.cells[at], known = cell.dataset.v, text = cell.textContent.trim();
    if (known !== undefined) return Number(known);
    if (text === "--" || text === "") return undefined;
    const plain = Number(text.replace(/[, \u00a0]/g, "").replace(/(%|x|s|\u00b1.*)$/, ""));
    return Number.isNaN(plain) ? text : plain;
  };

  function sorted(table, at, button) {
    const heading = button.closest("th"), down = heading.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
      const order = (one, other) => {
        const [a, b] = [value(one, at), value(other, at)];
        if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
        const found = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
        return down ? -found : found;
      };
      body.append(...rows.sort(order));
    }
  }

  function filtered(table, words, spoken) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const body of table.tBodies) {
      const named = (body.querySelector(".group") || { textContent: "" }).textContent;
      let shown = 0;
      for (const row of body.rows) {
        if (row.classList.contains("group")) continue;
        const text = (named + " " + row.textContent).toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      body.hidden = !shown;
      left += shown;
    }
    spoken.textContent = wanted.length ? `${left} row${left === 1 ? "" : "s"}` : "";
  }

  function table(one) {
    const rows = [...one.tBodies].reduce((sum, body) => sum + body.querySelectorAll("tr:not(.group)").length, 0);
    if (rows < 2) return;
    [...one.tHead.rows[0].cells].forEach((heading, at) => {
      const button = make("button", { type: "button", title: "Sort by this column" });
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sorted(one, at, button));
    });
    if (rows < 8) return;
    const field = make("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows" });
    const spoken = make("output", { className: "note" });
    field.addEventListener("input", () => filtered(one, field.value, spoken));
    one.closest(".scroll").before(make("p", { className: "filter" }, field, " ", spoken));
  }

  // One slide at a time, chosen by a slider; without scripts they follow one another.
  function slides(place) {
    const all = [...place.children], first = Number(place.dataset.first || 0);
    if (all.length < 2) return;
    const id = "slider-" + ++count, output = make("output", { htmlFor: id });
    const slider = make("input", { type: "range", id, min: 0, max: all.length - 1, step: 1, value: first });
    const show = () => {
      all.forEach((one, at) => { one.hidden = at !== Number(slider.value); });
      output.textContent = all[slider.value].dataset.label;
      slider.setAttribute("aria-valuetext", output.textContent);
    };
    slider.addEventListener("input", show);
    place.prepend(make("p", { className: "slider" }, make("label", { htmlFor: id, textContent: place.dataset.name }), slider, output));
    show();
  }

  function start(root) {
    root.querySelectorAll("table.data").forEach(table);
    root.querySelectorAll(".slides").forEach(slides);
    recolour(root);
    if (typeof Chart !== "undefined") root.querySelectorAll("figure.chart").forEach(figure);
  }

  night.addEventListener("change", () => {
    for (const one of drawn) { if (one.place.isConnected) one.again(); else drawn.delete(one); }
    recolour(document);
  });
  window.fedlsg = { start };
  start(document);
})();
