"""report.html: complete, self-contained, escaped; of one run and of many; and what is no run is refused."""

import base64
import json
import re
import shutil
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from simulations.compare.collect import read_runs
from simulations.compare.lines import lines
from simulations.compare.output import page
from simulations.compare.plots import _move_apart, curve, looks_of
from simulations.compare.table import notes
from simulations.plan.noise import RHO_MEANING
from simulations.report.course import course
from simulations.report.figure import plot, png
from simulations.report.run_page import command, run_page, write_run_page
from simulations.rundir.rundir import RunDir
from tests.simulations.support.compare_cases import result, row
from tests.simulations.support.own_scripts import without_scripts
from tests.simulations.support.runs import Run, reconfigure, without_manifest

HOSTILE = '<script>alert("1")</script>&\'"<img src=http://x onerror=y>'
RESULTS = [
    result(0.80), result(0.84, seed=1), result(0.7, method="linear-probe"), result(0.1, method="rs"),
    result(0.9, epsilon=8.0), result(0.97, method="sgd", epsilon=None), result(None, method="rgp"),
]  # fmt: skip


class Page(HTMLParser):
    """Tags, what they load, and the text between them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = ("src", "href", "xlink:href", "srcset", "data", "action")
        self.loads += [v or "" for k, v in attrs if k in names and tag != "a" and not (v or "").startswith("#")]
        self.links += [v or "" for k, v in attrs if k == "href" and tag == "a"]
        self.loads += re.findall(r"url\(([^)]*)\)", dict(attrs).get("style") or "")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            return
        self.words += " " + " ".join(data.split())
        if self.tags and self.tags[-1] == "style":
            self.loads += re.findall(r"url\(([^)]*)\)|@import", data)


def outside(source: str) -> list[str]:
    """What a browser would fetch to show the page."""
    return [target for target in Page(source).loads if not target.startswith("data:image/")]


@cache
def usual_page() -> str:
    """The page of RESULTS."""
    return made()


def made(results: list[object] = RESULTS, **more: str) -> str:
    return page("digits", results, lines(results), **more)


def test_the_page_says_what_a_reader_must_know():
    words = Page(made(command="fedlsg compare digits", grid="seeds = [0]")).words
    for part in (
        "6 of 7 runs finished", "seeds 0, 1", "82.0 ± 2.8", "NOT PRIVATE: sgd", "one example of one client",
        "add or remove one example", "No epsilon here covers that", "rgp-seed0", "failed: rank too big",
        "Not better than guessing by three standard errors: rs at epsilon 3", "linear-probe", "Some CPU, 2 cores",
        "torch 2.13.0", "fedlsg compare digits", "seeds = [0]", "guessing reaches 10.0 %",
    ):  # fmt: skip
        assert part in words, part
    assert "linear probe is missing" not in words
    assert "The private linear probe is missing" in Page(made([result(0.8)])).words


def test_the_pages_ask_nobody_for_anything(small):
    for source in (usual_page(), (small.path / "report.html").read_text()):
        assert outside(source) == []
        assert not {"link", "iframe", "object", "embed"} & set(Page(source).tags)
        own = without_scripts(source)
        assert "<script" not in re.sub(r'<script type="application/json">[^<]*</script>', "", own)
        assert source.count('<svg role="img"') >= 3
        assert all(link.startswith(("#", "data:")) for link in Page(source).links)


@pytest.mark.parametrize(
    "planted", ['<img src="http://x/a.png">', '<link href="https://x">', "<style>a{b:url(x)}</style>"]
)
def test_a_request_would_be_seen(planted):
    """Negative control."""
    assert len(outside(usual_page().replace("</body>", planted + "</body>"))) == 1


def test_hostile_text_stays_text(small):
    clean = set(Page(made(command="c", grid="g")).tags)
    bad = [result(0.8, label=HOSTILE, settings={"model": HOSTILE}), result(None, seed=1, reason=HOSTILE)]
    source = made([*RESULTS, *bad], command=HOSTILE, grid=HOSTILE)
    assert set(Page(source).tags) == clean
    assert outside(source) == []
    assert HOSTILE.replace("  ", " ") in Page(source).words
    one = run_page(result(0.8, settings={"model": HOSTILE}))
    assert HOSTILE in Page(one).words
    for text in (source, one):
        assert "<script" not in re.sub(r'<script type="application/json">[^<]*</script>', "", without_scripts(text))


def test_every_run_leaves_its_own_page(small):
    words = Page((small.path / "report.html").read_text()).words
    for part in ("digits with lsg, seed 0", "NOT PRIVATE: the noise is reproducible", "2 cores", "noise_multiplier"):
        assert part.replace("2 cores", "cores") in words
    assert str(small.path) not in words  # no folder of this machine in what one may publish


def test_a_page_with_noise_says_what_rho_means(small):
    words = Page((small.path / "report.html").read_text()).words
    assert f"rho {small.summary['rho']:.3g} (norm of a step's noise" in words
    assert RHO_MEANING in words
    assert RHO_MEANING not in Page(run_page(result(0.97, method="sgd", epsilon=None))).words


def test_rejections_and_an_early_end_are_shown():
    run = result(0.8, reason="every budget is spent")
    changed = run.__class__(**{**vars(run), "rows": (row(1, 0.5, rejected="1", reasons="1: wrong digest"),)})
    words = Page(run_page(changed)).words
    assert "stopped early: every budget is spent" in words
    assert "1: wrong digest" in words


def test_the_command_of_a_run_makes_the_same_settings(small):
    from simulations.cli.app import merge
    from simulations.settings.settings import from_mapping

    said = command(read_runs([small.path])[0]).split()
    assert said[:3] == ["fedlsg", "run", "digits"]
    assert "-c" in said
    again = from_mapping(merge({"workload": said[2]}, said[4::2]))
    before = RunDir(small.path).read_config()
    assert {k: v for k, v in vars(again).items() if k != "run_dir"} == {
        k: v for k, v in vars(before).items() if k != "run_dir"
    }


def test_a_page_that_cannot_be_made_costs_a_run_nothing(small, tmp_path, monkeypatch, caplog):
    shutil.copytree(small.path, tmp_path / "run")
    monkeypatch.setattr("simulations.report.run_page.run_page", lambda result: 1 / 0)
    write_run_page(RunDir(tmp_path / "run"))
    assert "fedlsg report" in caplog.text


# --- fedlsg report


def test_report_of_one_run(fedlsg, stopped, tmp_path):
    """Also of a run that is not finished, which says so."""
    assert fedlsg("report", str(stopped.path))[0] == 0
    words = Page((stopped.path / "report.html").read_text()).words
    assert "interrupted: this run is not finished; continue it with fedlsg resume" in words
    assert fedlsg("report", str(stopped.path), "--out", "there")[0] == 0
    assert (tmp_path / "there" / "report.html").exists()


def test_report_of_several_runs(fedlsg, stopped, small, tmp_path):
    shutil.copytree(small.path, tmp_path / "other")
    reconfigure(Run(tmp_path / "other"), **{"clip-norm": 0.25})
    status, out, err = fedlsg("report", str(small.path), "other", str(stopped.path), "--out", "there")
    assert (status, err) == (0, "")
    assert "lsg (clip_norm=0.25)" in " ".join(out.split())
    assert "run: interrupted after 1 rounds" in out
    assert "fedlsg resume RUN" in out
    assert "the same command continues" not in out
    assert (tmp_path / "there" / "plots" / "learning-curves.png").read_bytes().startswith(b"\x89PNG")
    lsg = {r.name: r for r in read_runs([small.path, tmp_path / "other", stopped.path])}
    assert lsg["small"].group == lsg["run"].group != lsg["other"].group


def compared(small: Run, folder: Path, **variants: dict[str, object]) -> Path:
    """A comparison's folder of the small run under several labels."""
    for label, changes in variants.items():
        shutil.copytree(small.path, folder / "cells" / f"{label}-seed0")
        reconfigure(Run(folder / "cells" / f"{label}-seed0"), **changes)
    methods = "".join(f"[methods.{label}]\nmethod = 'lsg'\n" for label in variants)
    (folder / "grid.toml").write_text("workload = 'digits'\n" + methods)
    return folder


SLOW: dict[str, object] = {"learning-rate": 0.2, "momentum": 0.5, "clip-norm": 0.25}


def test_a_comparison_keeps_the_labels_of_its_grid(small, tmp_path):
    """Of the folder, and of its cells named one by one; next to another grid their settings distinguish them."""
    folder = compared(small, tmp_path / "a", lsg={}, slow=SLOW)
    for paths in ([folder], sorted((folder / "cells").iterdir())):
        table = lines(read_runs(paths))
        assert sorted(line.label for line in table) == ["lsg", "slow"]
        assert "slow (r 4, p 0.3)" in looks_of(table)
        assert {line.label: line.runs[0].detail for line in table}["slow"] == (
            "clip_norm=0.25, learning_rate=0.2, momentum=0.5"
        )
    other = compared(small, tmp_path / "b", slow={**SLOW, "momentum": 0.25})
    assert sorted(run.label for run in read_runs([folder, other])) == ["lsg #1", "lsg #2", "lsg #3"]
    (folder / "grid.toml").write_text("= =")
    assert sorted(run.label for run in read_runs([folder])) == ["lsg #1", "lsg #2"]


def test_what_follows_from_another_setting_is_in_no_label(small, tmp_path):
    one = compared(small, tmp_path / "a", lsg={}) / "cells" / "lsg-seed0"
    other = compared(small, tmp_path / "b", lsg={"learning-rate": 0.2, "local-learning-rate": 0.2})
    labels = [run.label for run in read_runs([one, other])]
    assert labels[1] == "lsg (learning_rate=0.2)"


def test_variants_of_a_method_have_markers_of_their_own():
    variants = [result(0.8, label=label) for label in ("lsg", "lsg-bottom", "lsg-slow")]
    looks = looks_of(lines(variants))
    assert len({look[0] for look in looks.values()}) == 1
    assert len({look[1] for look in looks.values()}) == len({look[2] for look in looks.values()}) == 3
    assert looks["lsg"] == looks_of(lines(RESULTS[:1]))["lsg"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.toml", None, "is no run directory: it holds no config.toml"),
        ("config.toml", "= =", "config.toml is damaged"),
        ("summary.json", "{", "summary.json is damaged"),
        ("summary.json", '{"accuracy": 1}', "summary.json lacks epsilon_max"),
        ("rounds.csv", "round,accuracy\n1,0.5\n", "rounds.csv is damaged, or of another version"),
        ("rounds.csv", "a,b\n1,2\n", "rounds.csv is damaged"),
    ],
)
def test_what_is_no_run_is_refused(name, text, message, fedlsg, small, tmp_path):
    shutil.copytree(small.path, tmp_path / "run")
    if text is None:
        (tmp_path / "run" / name).unlink()
    else:
        (tmp_path / "run" / name).write_text(text)
    assert f"run/{name}" in fedlsg("report", "run")[2], "the manifest finds it, too"
    without_manifest(tmp_path / "run")
    status, _, err = fedlsg("report", "run", str(small.path), "--out", "there")
    assert status == 1
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "there").exists()


# --- figures


def test_a_curve_by_hand():
    """Rounds that every finished seed evaluated: mean, smallest, largest."""
    (line,) = lines([result(0.8), result(0.6, seed=1)])
    rounds, mean, low, high = curve(line)
    assert (rounds, mean, low, high) == ([1, 2], [35.0, 70.0], [30.0, 60.0], [40.0, 80.0])


def test_a_method_keeps_its_look():
    few, many = looks_of(lines(RESULTS[:1])), looks_of(lines(RESULTS))
    assert few["lsg"] == many["lsg"]
    assert len({look[:2] for look in many.values()}) == len(many)


@pytest.mark.parametrize("rows", [[row(1, None)], [row(1, 0.5, epsilon_max=float("inf"), epsilon_median=float("inf"))]])
def test_a_run_of_one_round_is_drawn(rows):
    figure = plot(course(rows, 0.1))
    assert png(figure).startswith(b"\x89PNG")
    for panel in figure.axes:  # a line through one point would be invisible
        assert all(line.get_marker() == "o" for line in panel.lines if len(line.get_xdata()) == 1)
        assert all(tick == round(tick) for tick in panel.get_xticks())


def test_equal_bytes_do_not_cover_each_other():
    """Three methods of 100 bytes, one of 200: golden by hand, and the order of size stays."""
    assert _move_apart([100.0, 200.0, 100.0, 100.0]) == pytest.approx([100 / 1.02, 200.0, 100.0, 102.0])
    assert _move_apart([0.0, 7.0]) == [0.0, 7.0]


def test_held_out_accuracies_are_not_called_public():
    public, held_out = result(0.8), result(0.8, settings={"holdout": 0.1})
    for found in (run_page(held_out), made([held_out]), " ".join(notes(lines([held_out])))):
        words = " ".join(Page(found).words.split())
        assert "held-out training rows" in words
        assert "which no client trains on" not in words
        assert "on the public test split; s.e." not in words
    for found in (run_page(public), made([public])):  # negative control
        assert "which no client trains on" in Page(found).words
        assert "held-out" not in Page(found).words


def test_a_run_that_only_guesses_says_so_on_its_page():
    assert "not better than guessing" in Page(run_page(result(0.12))).words
    assert "not better than guessing" not in Page(run_page(result(0.8))).words


def test_a_report_that_cannot_be_written_is_one_line(fedlsg, small, tmp_path):
    (tmp_path / "file").write_text("")
    status, out, err = fedlsg("report", str(small.path), "--out", "file")
    assert (status, out) == (1, "")
    assert "cannot write to" in err
    assert "choose another --out" in err


def test_figures_embed_no_foreign_content():
    source = usual_page()
    figures = "".join(re.findall(r"<figure[^>]*>.*?</figure>", source, re.DOTALL))
    assert "<use" in figures
    assert re.findall(r'(?:href|src)="(?!#)([^"]*)"', figures) == []
    assert re.findall(r"url\((?!#)([^)]*)\)", figures) == []


def test_the_data_of_a_page_are_in_it(small):
    """rounds.csv and summary.json of the links are those of the run."""
    links = Page((small.path / "report.html").read_text()).links
    files = [base64.b64decode(link.partition(";base64,")[2]).decode() for link in links if link.startswith("data:")]
    assert files[0].splitlines() == small.directory.rounds.read_text().splitlines()
    assert json.loads(files[1])["uplink_bytes"] == small.summary["uplink_bytes"]


def test_nothing_finished_is_a_page_too():
    assert "0 of 1 runs finished" in Page(made([result(None)])).words


def test_pages_are_small(small: Run):
    """The library of figures is most of it."""
    source = (small.path / "report.html").read_text()
    assert len(source.encode()) < 450_000
    assert len(without_scripts(source)) < 120_000


def test_files_of_callbacks_and_weights_are_named_without_their_folder():
    places = {"callbacks": "/home/me/mine.py:Watch rounds=1; best-model", "pretrained": "/home/me/weights.safetensors"}
    page = run_page(result(0.8, settings=places))
    assert "/home/me" not in page
    assert "mine.py:Watch rounds=1; best-model" in page
