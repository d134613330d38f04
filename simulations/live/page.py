"""The page of a run at this moment: that of report.html, with a line and a script that follow the run."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, thread_time

from markupsafe import Markup

from simulations.report.template import BODY, LIVE_LINE, LIVE_START

ENTRY = "live.html"
"""The file that leads the owner's browser to the page: nobody else can read it, and it is removed at the end."""
LAST_SECONDS = 5.0
"""How long a browser has, after the run, to take the last state."""
WATCHED = ("config.toml", "rounds.csv", "summary.json")
"""Files of a run that its page shows."""
PACE = 10.0
"""The page is made again after this many times the time that making it took: at most a tenth of a processor."""
BUSY = "The run is going on. This page follows it."
OVER = "The run has ended, and nothing follows it any more. This page stays as {} in its folder."
STOPPED = "The run was interrupted, and nothing follows it any more. To continue it: fedlsg resume {}"
GONE = "No answer any more. The run may have been killed: fedlsg runs says so."
SCRIPT = """(() => {
const bar = () => document.getElementById("live"), pause = ms => new Promise(done => setTimeout(done, ms));
const busy = () => document.querySelector("figure:hover, main :focus");
const policy = page => page.querySelector("meta[http-equiv]")?.content;
async function change() {
  const answer = await fetch("?", {cache: "no-store"});
  if (!answer.ok) throw new Error(answer.status);
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (policy(next) !== policy(document)) { location.reload(); return pause(60000); }
  const open = [...document.querySelectorAll("details")].map(one => one.open);
  document.title = next.title;
  document.body.replaceChildren(...next.body.childNodes);
  document.querySelectorAll("details").forEach((one, place) => one.open = open[place] ?? one.open);
  window.fedlsg?.start(document);
}
async function follow() {
  for (let missed = 0; missed < 5;) {
    try {
      const answer = await fetch("state?" + bar().dataset.version, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status);
      const state = await answer.json();
      missed = 0;
      if (state.version !== bar().dataset.version && (state.over || !busy())) await change();
      if (state.over) return;
      await pause(300);
    } catch { missed += 1; await pause(700); }
  }
  bar().textContent = bar().dataset.gone;
}
follow();
})();"""
"""A page with other scripts has another policy: it is loaded anew. Else the body alone changes."""


@dataclass
class LivePage:
    """The page of one run directory. One thread calls ``refresh`` and ``finish``; others read what was ``made``."""

    folder: Path
    made: tuple[str, bytes] = ("", b"")
    """The version of the page, and the page as HTML."""
    over: bool = False
    """Whether the page is that of the end."""
    delivered: bool = False
    """Whether a browser has it."""
    _next: float = 0.0

    def __post_init__(self) -> None:
        self.made = "starting", following_html(LIVE_START.replace("SCRIPT", SCRIPT), "starting", BUSY)

    def give(self) -> bytes:
        """The page for a browser."""
        version, content = self.made
        self.delivered = self.delivered or version == "over"
        return content

    def prepare(self) -> None:
        """Import what makes the page, which takes seconds: the server answers before."""
        import simulations.report.run_page  # noqa: F401

    def refresh(self) -> None:
        """Make the page again if the run has something new, no more often than ``PACE`` says."""
        version = "-".join(_mark(self.folder / name) for name in WATCHED)
        if version != self.made[0] and monotonic() >= self._next:
            before = thread_time()
            with suppress(Exception):  # a file is being replaced: the next time succeeds
                self.made = version, self._html(version, "running")
            self._next = monotonic() + PACE * (thread_time() - before)

    def finish(self) -> None:
        """Make the page of the end. The process of the run is gone, so nothing changes any more."""
        with suppress(Exception):
            self.made = "over", self._html("over", None)
        self.over = True

    def _html(self, version: str, status: str | None) -> bytes:
        from simulations.report.run_page import run_page
        from simulations.rundir.results import read_run

        result = read_run(self.folder, status=status)
        ended = OVER.format("report.html") if result.summary else STOPPED.format(self.folder)
        return following_html(run_page(result, follow=SCRIPT), version, BUSY if status else ended)


def following_html(page: str, version: str, words: str) -> bytes:
    """A page with the line that says what follows the run."""
    head, body, rest = page.partition(BODY)
    return "".join([head, body, Markup(LIVE_LINE).format(version=version, words=words, gone=GONE), rest]).encode()


def _mark(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "0"
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"
