"""report.html: complete, self-contained, escaped; of one run and of many; and what is no run is refused."""

import re
import shutil
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from simulations.compare.collect import read_runs
from simulations.compare.lines import lines
from simulations.compare.output import page
from simulations.report.run_page import command, run_page, write_run_page
from simulations.report.tiles import check_against, run_tiles
from simulations.rundir.rundir import RunDir
from tests.simulations.support.compare_cases import result
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
    assert re.search(r"sent by clients so far\s+[\d.]+ kB\s+until round 1", words)
    assert "the dotted line" not in words, "guessing is not drawn yet"
    found = read_runs([stopped.path])[0]
    for repeated in (False, True):  # noise that can be repeated claims nothing
        tiles = run_tiles(replace(found, settings={**found.settings, "reproducible": repeated}))
        assert tiles is not None
        assert ("epsilon so far" in [tile.name for tile in tiles.tiles]) is not repeated
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


def test_the_accuracy_without_privacy_is_named_where_a_run_has_it():
    private, dense = result(0.8), result(0.97, method="sgd", epsilon=None)
    tiles = run_tiles(private, dense)
    assert tiles is not None
    assert f"without privacy: 97.00 % ({dense.name})" in tiles.tiles[0].note
    check_against(private, dense)
    for other, why in (
        (private, "is private: give a run without privacy"),
        (replace(dense, settings={**dense.settings, "workload": "sst2"}), "has workload=sst2, and the run workload="),
        (result(None, method="sgd", epsilon=None), "has no accuracy"),
    ):
        with pytest.raises(ValueError, match=why):
            check_against(private, other)
