"""Settings that a comparison varies: cells, refusals, columns, curves, heat maps; the question before a long grid."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from matplotlib.colors import to_hex
from rich.console import Console

from simulations.attack.recording import lacking
from simulations.compare.cells.grid_file import as_toml, from_toml, parse_varied, read_varied
from simulations.compare.cells.progress import ask_above_an_hour
from simulations.compare.cells.worker import Job
from simulations.compare.collect import read_runs
from simulations.compare.command import make_grid
from simulations.compare.lines import lines
from simulations.compare.output import page
from simulations.compare.table import comparison_table, table_csv
from simulations.compare.vary_plots import curves, heat_maps, heat_panels, varied_figures
from simulations.report.progress import live_bar
from simulations.rundir.results import Result, results_csv
from tests.simulations.support.compare_cases import grid, result
from tests.simulations.support.search_cases import finish

CLIPS, NOISES = (0.1, 1.0, 10.0), (0.5, 2.0)
METHODS = {"dpsgd": {}, "lsg": {}, "sgd": {}, "lsg-c3": {"method": "lsg", "clip_norm": 3.0}}


def test_every_method_is_run_with_all_combinations_of_the_settings_that_it_has():
    made = grid(methods=METHODS, vary={"clip_norm": [1, 0.1], "rank": [2, 4]})
    assert [cell.name for cell in made.cells()] == [
        "dpsgd-clip_norm0.1-seed0",
        "lsg-clip_norm0.1-rank2-seed0",
        "sgd-seed0",
        "lsg-c3-rank2-seed0",
        "lsg-clip_norm0.1-rank4-seed0",
        "lsg-c3-rank4-seed0",
        "dpsgd-clip_norm1-seed0",
        "lsg-clip_norm1-rank2-seed0",
        "lsg-clip_norm1-rank4-seed0",
    ]
    assert made.cells()[4].given.items() >= {"clip_norm": 0.1, "rank": 4}.items()
    assert made.cells()[4].varied == (("clip_norm", 0.1), ("rank", 4))
    assert made.dropped() == [("dpsgd", "rank"), ("sgd", "clip_norm"), ("sgd", "rank")]


def test_a_setting_of_every_method_that_one_lacks_is_named_too():
    assert grid(settings={"rank": 4}).dropped() == [("sgd", "rank")]
    assert lacking(["dpsgd", "lsg"], {"rank": "4", "clients": "2"}) == [("dpsgd", "rank")]
    with pytest.raises(ValueError, match="none of the methods dpsgd, rs has a setting out_rank: leave it out"):
        lacking(["dpsgd", "rs"], {"out_rank": "4"})


def test_options_and_files_say_the_same():
    said = dict.fromkeys(("methods", "epsilons", "seeds", "ranks", "sparsities")) | {"methods": "lsg"}
    made = make_grid("digits", said | {"vary": ["clip-norm=10, 0.1,1", "importance=weights,random"]}, {}, None)
    assert made.vary == {"clip_norm": CLIPS, "importance": ("weights", "random")}
    assert from_toml(as_toml(made)) == made


@pytest.mark.parametrize(
    ("texts", "more", "words"),
    [
        (["clip_norm"], {}, "expected --vary NAME=A,B,C, got 'clip_norm'"),
        (["clip_norm=1,2", "clip-norm=1,2"], {}, "--vary clip_norm is given twice"),
        (["clip_norn=1,2"], {}, "unknown setting 'clip_norn'; did you mean 'clip_norm'"),
        (["clip_norm=1"], {}, "expected two values of clip_norm at least"),
        (["clip_norm=0,1"], {}, "expected 1e-30 <= clip_norm=0"),
        (["epsilon=1,3"], {}, "epsilon is an axis of its own: give it as --epsilons"),
        (["clip_norm=1,2"], {"settings": {"clip_norm": 1.0}}, "clip_norm is varied, and given elsewhere"),
        (["rank=1,2"], {"ranks": [1, 2]}, "rank is varied, and given elsewhere"),
        (["noise_multiplier=1,2"], {"epsilons": [3.0]}, "give either --epsilons or"),
        (["damping=0.1,0.2"], {}, "none of the methods lsg, sgd has a setting damping"),
    ],
)
def test_what_cannot_be_varied_is_refused(texts, more, words):
    with pytest.raises(ValueError, match=words):
        grid(vary=parse_varied(read_varied(texts)), **more)


def accuracy(clip: float, noise: float) -> float:
    """Different for every pair, and not symmetric: best at clip 1, noise 0.5."""
    return 0.9 - 0.2 * abs(CLIPS.index(clip) - 1) - 0.07 * NOISES.index(noise) - 0.01 * CLIPS.index(clip)


def varied(clip: float, noise: float, seed: int, method: str = "dpsgd") -> Result:
    pairs = (("clip_norm", clip), ("noise_multiplier", noise))
    mean = accuracy(clip, noise) + (0.02 if seed else -0.02)
    found = result(mean, method=method, epsilon=8 / noise, seed=seed, settings={"epsilon": None, **dict(pairs)})
    return replace(found, group=(method, *pairs), varied=pairs)


def table() -> list[Any]:
    runs = [varied(clip, noise, seed) for clip in CLIPS for noise in NOISES for seed in (0, 1)]
    return lines([*runs, result(0.95, method="sgd", epsilon=None)])


def test_the_table_has_a_column_for_each_varied_setting():
    shown = comparison_table(table())
    assert shown.columns[:4] == ("method", "clip_norm", "noise_multiplier", "epsilon")
    best = next(row for row in shown.rows if row.cells[0] == "dpsgd")
    assert best.cells[1:3] == ("1", "0.5")
    assert next(row for row in shown.rows if row.cells[0] == "sgd").cells[1:3] == ("--", "--")
    rows = list(csv.DictReader(io.StringIO(table_csv(table()))))
    assert {(row["clip_norm"], row["noise_multiplier"]) for row in rows} == {
        ("", ""), *((f"{clip}", f"{noise}") for clip in CLIPS for noise in NOISES)
    }  # fmt: skip
    text = results_csv([run for line in table() for run in line.runs])
    assert {row["clip_norm"] for row in csv.DictReader(io.StringIO(text))} == {"", "0.1", "1.0", "10.0"}


def test_a_heat_map_has_each_mean_at_its_place():
    """The first setting across, the second one up: a transposed map would have 3 rows, and other means."""
    names = ["clip_norm", "noise_multiplier"]
    (panel,) = heat_panels(table(), names)
    axes = heat_maps([panel], names).axes[0]
    words = {(round(text.get_position()[0]), round(text.get_position()[1])): text.get_text() for text in axes.texts}
    assert words == {
        (x, y): f"{100 * accuracy(clip, noise):.1f}\n±2.8"
        for x, clip in enumerate(CLIPS)
        for y, noise in enumerate(NOISES)
    }
    grounds = {(p.get_x() + 0.5, p.get_y() + 0.5): to_hex(p.get_facecolor()) for p in axes.patches if p.get_fill()}
    assert len(set(grounds.values())) >= 6
    frame = axes.patches[-1]
    assert (round(frame.get_x() + 0.46), round(frame.get_y() + 0.46)) == (1, 0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0.5\nepsilon 16.0", "2\nepsilon 4.0"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "1", "10"]
    assert "clip_norm" in axes.get_xlabel()


def test_what_failed_is_named_in_its_cell():
    lost = replace(varied(10.0, 2.0, 0), status="failed", summary={}, reason="the loss is nan")
    found = lines(
        [varied(clip, noise, 0) for clip in CLIPS for noise in NOISES if (clip, noise) != (10.0, 2.0)] + [lost]
    )
    names = ["clip_norm", "noise_multiplier"]
    axes = heat_maps(heat_panels(found, names), names).axes[0]
    words = {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text() for t in axes.texts}
    assert words[2, 1] == "failed"
    assert words[2, 0] == f"{100 * accuracy(10.0, 0.5) - 2:.1f}"  # one seed: no deviation


def test_one_setting_makes_curves_and_a_line_for_a_method_without_it():
    runs = [replace(varied(clip, 0.5, seed), varied=(("clip_norm", clip),)) for clip in CLIPS for seed in (0, 1)]
    found = lines([*runs, result(0.95, method="sgd", epsilon=None)])
    (chart,) = curves([line for line in found if line.mean is not None], "clip_norm")
    curve, flat = sorted(chart.series[:2], key=lambda one: one.kind, reverse=True)
    assert list(curve.x) == list(CLIPS)
    assert list(curve.y) == pytest.approx([100 * accuracy(clip, 0.5) for clip in CLIPS])
    assert chart.x.log
    assert (flat.kind, flat.y[0]) == ("level", pytest.approx(95))


def test_the_page_shows_the_heat_map():
    text = page("digits: varied", [run for line in table() for run in line.runs], table())
    assert "A frame marks the best pair of a panel" in text
    assert "±2.8" in text
    assert varied_figures(lines([result(0.9)])) == {}  # negative control: nothing is varied


def test_report_reads_what_was_varied_from_the_grid(tmp_path: Path):
    made = grid(methods={"dpsgd": {}}, vary={"learning_rate": [0.5, 1.0]})
    for cell in made.cells():
        finish(Job(path=str(tmp_path / "cells" / cell.name), log="", given=dict(cell.given)))
    (tmp_path / "grid.toml").write_text(tomli_w.dumps(as_toml(made)))
    found = lines(read_runs([tmp_path]))
    assert sorted((line.label, line.name) for line in found) == [
        ("dpsgd", "dpsgd (learning_rate 0.5)"), ("dpsgd", "dpsgd (learning_rate 1)")
    ]  # fmt: skip
    assert set(varied_figures(found)) == {"accuracy-varied"}


@pytest.mark.parametrize(
    ("seconds", "options", "answer", "goes_on"),
    [
        (3500.0, {}, None, True),
        (3700.0, {}, "y", True),
        (3700.0, {}, "", False),
        (3700.0, {"yes": True}, None, True),
        (3700.0, {"budget_seconds": 600.0}, None, True),
        (3700.0, {"terminal": False}, None, True),
    ],
)
def test_a_terminal_is_asked_above_an_hour(seconds, options, answer, goes_on, monkeypatch):
    """``answer`` None: nothing may be asked."""
    options = {"yes": False, "budget_seconds": None, "terminal": True} | options
    terminal = options.pop("terminal")
    asked: list[str] = []
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(console, "input", lambda words: asked.append(words) or answer)
    ask = ask_above_an_hour(console, lambda: live_bar(console), **options)
    if goes_on:
        ask(seconds)
    else:
        with pytest.raises(KeyboardInterrupt):
            ask(seconds)
    assert len(asked) == (answer is not None)
