"""The README, its figure and program, and the commands of the pages next to it."""

import re
from pathlib import Path

import pytest

from benchmarks.accuracy_bytes import LABELS, SHADES, SOURCE, numbers, read
from simulations.settings.published.catalogue import matching
from tests.commands import commands, problem
from tests.places import REPOSITORY

README = REPOSITORY / "README.md"
PAGES = [README, *(REPOSITORY / "docs" / f"{name}.md" for name in ("start", "commands", "papers", "privacy"))]
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_readme_is_short_and_keeps_the_test_command():
    text = README.read_text()
    assert len(text.splitlines()) < 120
    command = 'python -m pytest -m "not slow and not gpu" -n 2'
    assert command in text
    assert command in (REPOSITORY / ".ci" / "run").read_text()


def test_the_program_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (program,) = PROGRAM.findall(README.read_text())
    names: dict[str, object] = {}
    exec(program, names)
    run = names["run"]
    assert run.summary["accuracy"] > 0.6  # type: ignore[attr-defined]
    assert run.epsilon == pytest.approx(8, abs=0.01)  # type: ignore[attr-defined]
    assert "test accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_that_fedlsg_takes(page):
    found = commands(page.read_text())
    assert [wrong for command in found if (wrong := problem(command))] == []
    assert found or page.stem == "privacy"


@pytest.mark.parametrize(
    "planted",
    [
        "fedlsg ran",
        "fedlsg run --rnds 2",
        "fedlsg run -c sparsty=0.5",
        "fedlsg run -c sparsity=2",
        "fedlsg run --method lgs",
        "fedlsg run --preset lsg-cifar10-eps33",
        "fedlsg compare digits -c lsg.sparsty=0.5",
        "fedlsg compare digits --methods lsg,rpg",
        "fedlsg run cifar11",
        'fedlsg presets "LSG (Ito et al. 2023), Table 9"',
    ],
)
def test_a_command_that_does_not_exist_is_found(planted):
    assert commands(f"```bash\n{planted}   # a comment\n```") == [planted] == commands(f"Run `{planted}`.")
    assert problem(planted) is not None


ROW = re.compile(r"^\| (?!in the paper)([^|-][^|]*) \| ([^|]*) \|", re.MULTILINE)
SAID = ("missing", "theory", "drawing", "fedlsg ", "python ", "preset", "](results/")


def uncovered(text: str) -> list[str]:
    """Rows of papers.md that neither name a command or a result nor say that there is none."""
    return [item for item, cell in ROW.findall(text) if not any(word in cell for word in SAID)]


def test_every_row_of_the_papers_has_a_command_or_says_missing():
    text = (REPOSITORY / "docs" / "papers.md").read_text()
    assert uncovered(text) == []
    assert len(ROW.findall(text)) > 75
    assert uncovered(text + "\n| Eq. 9 | soon | |\n") == ["Eq. 9"]


def test_the_figure_shows_the_numbers_of_its_table():
    points = read(SOURCE.read_text())
    assert {point.method for point in points} == LABELS.keys()
    for ending in SHADES:
        assert drawn(REPOSITORY / "docs" / f"accuracy-bytes{ending}.svg") == numbers(points)


def drawn(figure: Path) -> str:
    """The numbers that a figure says it shows."""
    return re.findall(r"<dc:description>(.*?)</dc:description>", figure.read_text(), re.DOTALL)[0]


def test_a_row_takes_the_epsilon_above_it():
    table = "| epsilon | method | rho |\n|---|---|---|\n| 8 | `a` | - | 50.0 ± 0.5 | | 3 | 1,000 |\n"
    table += "| 1 | `b`, *q* | - | 40.0 ± 0.2 | | 3 | 20 |\n| | `c`* | - | 39.0 | | 1 | 30 |\n\n| other |\n"
    assert [tuple(point) for point in read(table)] == [("b, q", 40.0, 0.2, 20), ("c", 39.0, 0.0, 30)]


def test_a_place_of_a_paper_lists_its_rows_alone():
    there = matching("lsg (ito et al. 2023), table 2")
    assert {preset.source for preset in there} == {"LSG (Ito et al. 2023), Table 2"}
    assert len(matching("lsg table 2")) > len(there) == 16
