"""``fedlsg inspect``: its numbers against brute force and by hand, what it writes, and what it
leaves alone.
"""

import csv
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.nn import functional as F
from torch.testing import assert_close

from fedlsg import strategies
from fedlsg.frame import Frame, make_blocks
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.lowrank import project
from fedlsg.privacy.clip import clipped_sum
from fedlsg.simulations.cli import command_line as cli
from fedlsg.simulations.cli import examine
from fedlsg.simulations.inspection import (
    Subject,
    batch_gradient,
    subject_of_run,
    subject_of_settings,
)
from fedlsg.simulations.inspection.figures import figures
from fedlsg.simulations.inspection.inspect_command import inspect_command
from fedlsg.simulations.inspection.inspection_files import _caption, factor_words, headline
from fedlsg.simulations.inspection.inspection_tables import (
    clip_table,
    layer_table,
    rows_of,
    shown_sparsity,
    shown_tables,
)
from fedlsg.simulations.inspection.measure import inspect, unmasked
from tests.simulations.support.own_scripts import without_scripts
from tests.simulations.support.runs import Run, resume_local

HIDDEN = "hidden.weight"


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def files_of(path: Path) -> dict[str, str]:
    """Digests of a run's files and the time of their last change, without what the inspection
    made.
    """
    return {
        str(
            file.relative_to(path)
        ): f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.stat().st_mtime_ns}"
        for file in sorted(path.rglob("*"))
        if file.is_file() and "inspection" not in file.relative_to(path).parts
    }


@pytest.fixture(scope="module")
def after(small: Run) -> Subject:
    """The small run of lsg after its two rounds."""
    return subject_of_run(str(small.path))


def dense_frame(subject: Subject) -> Frame:
    where = tuple(replace(c, L=None, R=None) for c in subject.frame.coordinates)
    return Frame(coordinates=where, blocks=make_blocks(where))


def test_the_batch_gradient_is_the_mean_of_the_examples_own(after):
    """Oracle: per-example gradients, dense and in the carriers. Negative control: their clipped
    mean is another.
    """
    rows = after.rows(30)
    gradients = batch_gradient(after, rows)
    inputs, targets = after.base.workload.train.batch(rows)
    frame = dense_frame(after)
    every = per_example_gradients(after.model, losses, inputs, targets, frame)
    for block, values in zip(frame.blocks, every, strict=True):
        assert_close(gradients[block.parameter].flatten(), values.mean(0), atol=1e-6, rtol=1e-4)
    free = unmasked(after.frame)
    carried = per_example_gradients(after.model, losses, inputs, targets, free)
    where = next(c for c in free.coordinates if c.name == HIDDEN)
    dL, dR = project(gradients[HIDDEN], where.L, where.R)
    for block, values in zip(free.blocks, carried, strict=True):
        if block.parameter == HIDDEN:
            expected = dL if block.part == "L" else dR
            assert_close(values.mean(0).reshape(block.shape), expected, atol=1e-6, rtol=1e-4)
    clipped = clipped_sum(every, after.base.method.mechanism) / len(rows)
    assert not torch.allclose(
        clipped[: len(every[0][0])], gradients[frame.blocks[0].parameter].flatten(), rtol=0.05
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", strategies.names())
def test_every_recipe_before_training(method):
    subject = subject_of_settings({"workload": "digits", "method": method})
    found = inspect(subject, examples=8, sparsities=[0.0, 0.5], ranks=[1, 2])
    assert [row.layer for row in found.layers] == list(subject.layers)
    assert len(found.own.clipping.factors) == 8
    assert {row.sparsity for row in found.clips} == (
        {0.0} if subject.base.method.carrier.form.embeds else {0.0, 0.5}
    )
    assert all(row.kept <= subject.frame.size for row in found.clips)
    assert {row.source for row in found.residuals} <= {"gradient", "W", "random"} or subject.moved


MECHANISMS = {
    "dp": ({}, True, True),
    "clip-only": ({"mechanism": "clip-only"}, True, False),
    "noise-only": ({"mechanism": "noise-only", "noise_multiplier": 1.0}, False, True),
    "none": ({"mechanism": "none"}, False, False),
}


@pytest.mark.parametrize("kind", MECHANISMS)
def test_of_clip_and_noise_only_what_the_run_has_is_said(kind):
    """By headline, tables, figures and captions. The control: a run with both says both."""
    given, clips, noisy = MECHANISMS[kind]
    subject = subject_of_settings({"workload": "digits", "method": "rs", **given})
    found = inspect(subject, examples=6, sparsities=[0.0, shown_sparsity(subject)], ranks=[1])
    tables, drawn = shown_tables(subject, found), figures(found, subject, [])
    columns = {name for table in tables for name in table.columns}
    words = " ".join([headline(found), *(table.title for table in tables)])
    assert ("shortens" in words) == ("clipped" in columns) == clips
    assert ("of the whole" in columns) == ("clipped gradient" in words.lower()) == clips
    assert ("noise" in columns) == ("Noise" in words) == noisy
    assert [len(drawn["clipping"]), bool(factor_words(found))] == [1 + clips, clips]
    assert len(drawn.get("sparsified-ratios", ())) == clips + noisy
    caption = "".join(_caption(name, found) for name in drawn)
    assert ("are shortened by the clip" in caption) == ("Clipped mean" in caption) == clips
    assert ("Noise: its length" in caption) == noisy
    assert ("clipped" in rows_of(found)["clipping"][0]) == clips
    labels = [one.name for chart in drawn["clipping"] for one in chart.series]
    assert any("clip norm" in label for label in labels) == clips


def test_a_run_without_a_mask_has_every_number_once():
    """Its own row is that of no mask; nothing is said to be frozen by it."""
    subject = subject_of_settings({"workload": "digits", "method": "dpsgd"})
    found = inspect(subject, examples=6, sparsities=[0.0, shown_sparsity(subject)], ranks=[1])
    rows = next(table for table in shown_tables(subject, found) if "clipped" in table.columns).rows
    assert [row.cells[0] for row in rows].count("all (the run)") == 1
    assert "all" not in [row.cells[0] for row in rows]
    assert list(factor_words(found)) == ["nothing frozen"]
    assert "frozen" not in headline(found)
    masked = subject_of_settings({"workload": "digits", "method": "lsg", "sparsity": 0.5})
    other = inspect(masked, examples=6, sparsities=[0.0, shown_sparsity(masked)], ranks=[1])
    assert "With a share of 0.5 frozen" in headline(other)
    assert len(factor_words(other)) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"method": "lsg", "sparsity": 0.5},
        {"method": "lsg", "importance": "random"},
        {"method": "rs"},
    ],
)
def test_every_mask_has_one_row_and_a_legend(given):
    """The run's own is not repeated among the others: "top (the run) 0.5" and "top 0.5"."""
    subject = subject_of_settings({"workload": "digits", **given})
    found = inspect(subject, examples=6, sparsities=[0.0, shown_sparsity(subject)], ranks=[1])
    table = clip_table(found)
    names = [(row.cells[0].removesuffix(" (the run)"), row.cells[1]) for row in table.rows]
    assert len(set(names)) == len(names) > 1
    assert all(f"{name}: " in table.note for name, _ in names)


def test_a_clip_of_each_block_is_not_shown_as_one_of_the_whole():
    subject = subject_of_settings({"workload": "digits", "method": "dpsgd", "clip": "per-block"})
    found = inspect(subject, examples=6, sparsities=[0.0], ranks=[1])
    assert "% of the blocks of 6 training examples" in headline(found)
    drawn = figures(found, subject, [])["clipping"]
    assert not any("clip norm" in one.name for chart in drawn for one in chart.series)


def test_every_source_of_carriers_is_explained_below_its_table():
    subject = subject_of_settings({"workload": "digits", "method": "lsg"})
    found = inspect(subject, examples=6, sparsities=[0.0], ranks=[1])
    table = layer_table(subject, found)
    assert {"gradient", "W"} <= set(table.columns)
    for name in table.columns[3:]:
        assert f"{name}: " in table.note


@pytest.mark.slow
def test_the_files_and_what_is_left_alone(stopped, capsys, monkeypatch):
    """Every other file of the run keeps its bytes and its time; the run goes on afterwards."""
    monkeypatch.setattr(
        "sys.argv",
        ["fedlsg", "inspect", str(stopped.path), "--examples", "24", "--layer", "hidden"],
    )
    monkeypatch.setattr(examine, "console", Console(force_terminal=True, width=200))
    before = files_of(stopped.path)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert files_of(stopped.path) == before
    shown = capsys.readouterr().out
    assert "\x1b[1;31mNOT PRIVATE" in shown
    assert "clip factors of the first examples (1: not clipped), nothing frozen:" in shown
    out = stopped.path / "inspection"
    written = json.loads((out / "inspection.json").read_text())
    assert written["private"] is False
    assert "NOT PRIVATE" in written["warning"]
    assert (written["rounds_done"], written["updates"], written["examples"]) == (1, 1, 24)
    assert {path.suffix for path in out.iterdir()} == {".json", ".csv", ".png", ".html"}
    assert [path.name for path in out.glob("intensity-*")] == ["intensity-hidden.weight.png"]
    with (out / "clipping.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["kept_units"], float(first["clipped"])) == (
        "the run's own",
        written["clipping"][0]["clipped"],
    )
    for image in out.glob("*.png"):
        with Image.open(image) as picture:
            assert picture.width > 600
            assert np.asarray(picture.convert("L")).std() > 5  # something is drawn
    html = (out / "inspection.html").read_text()
    assert "NOT PRIVATE" in html
    assert html.count("<figure") == len(list(out.glob("*.png")))
    assert html.count("data:image/webp;base64,") == len(list(out.glob("intensity-*.png")))
    clipped = 100 * written["clipping"][0]["clipped"]
    assert f"shortens the gradients of {clipped:.0f}\u00a0% of" in html
    assert "http" not in without_scripts(html).replace("http://www.w3.org", "")
    assert resume_local(stopped.path).rows[-1].round == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 0}, "examples=0 >= 1"),
        ({"ranks": "0,2"}, "ranks >= 1"),
        ({"ranks": "two"}, "--ranks as numbers"),
        ({"sparsities": "0.5,1"}, "sparsity=1.0 < 1"),
        ({"layers": ["nowhere"]}, "unknown layer 'nowhere'; known: hidden.weight"),
        ({"given": {"rank": 2}}, "a run has its settings; leave out rank"),
    ],
)
def test_what_is_refused(small, tmp_path, options, message):
    given = options.pop("given", {})
    with pytest.raises(ValueError, match=message):
        inspect_command(
            str(small.path), given, Console(quiet=True), out=str(tmp_path / "out"), **options
        )
    assert not (tmp_path / "out").exists()
