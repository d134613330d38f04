"""Names that a user gives to methods, and the table for a paper."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.text import Text

from fedlsg.simulations.compare.grid.grid_file import as_toml, from_toml
from fedlsg.simulations.compare.results.bytes_axis import View, read_labels
from fedlsg.simulations.compare.results.collect import kept_labels
from fedlsg.simulations.compare.results.comparison_files import Comparison
from fedlsg.simulations.compare.results.comparison_table import frame_of
from fedlsg.simulations.compare.results.lines import check_labels, lines
from fedlsg.simulations.compare.results.plots import figures
from fedlsg.simulations.report.pages.figure import plot, png
from fedlsg.simulations.storage.results import Result
from tests.simulations.support.compare_cases import grid, result


def of_rank(rank: int, score: float, **more: object) -> Result:
    return result(score, settings={"rank": rank}, **more)  # type: ignore[arg-type]


def names(results: list[Result], **labels: str) -> list[str]:
    return list(lines(results, labels).name)


def test_settings_in_a_name_are_spelled_out():
    assert names([of_rank(4, 0.8)]) == ["lsg (rank 4)"]


def test_a_given_name_stands_alone_where_it_is_clear():
    runs = [of_rank(4, 0.8), result(0.7, method="dpsgd")]
    assert names(runs, lsg="LSG, rank 4") == ["LSG, rank 4", "dpsgd"]
    assert names(runs) == ["lsg (rank 4)", "dpsgd"]


def test_several_lines_of_one_name_say_how_they_differ():
    runs = [of_rank(4, 0.8), of_rank(8, 0.7)]
    assert names(runs, lsg="LSG") == ["LSG (rank 4)", "LSG (rank 8)"]
    assert names(runs, **{"lsg (rank 8)": "wide"}) == ["lsg (rank 4)", "wide"]


def test_a_label_of_the_user_s_own_stands_alone_where_it_is_clear():
    runs = [of_rank(8, 0.8, method="rgp", label="RGP_8"), of_rank(4, 0.7, method="rgp")]
    assert names(runs) == ["RGP_8", "rgp (rank 4)"]
    both = [*runs, of_rank(4, 0.6, method="rgp", label="RGP_8")]
    assert names(both) == ["RGP_8 (rank 8)", "rgp (rank 4)", "RGP_8 (rank 4)"]
    untouched = of_rank(4, 0.7, method="rgp", label="rgp-untouched")
    assert names([untouched]) == ["rgp-untouched (rank 4)"]


def test_formulas_of_names_are_formulas_in_papers(tmp_path):
    """Control: dollars that are no formula, and what no formula can be, stay text."""
    runs = [result(0.8), result(0.7, method="rgp"), result(0.6, method="rs")]
    labels = {"lsg": r"a_b $\sigma_1$", "rgp": "$5 or $6_", "rs": r"$\foo{$"}
    made = Comparison(title="t", results=runs, view=View(labels=labels))
    rows = made.files["table.tex"]
    assert r"a\_b $\sigma_1$ &" in rows
    assert r"\$5 or \$6\_ &" in rows
    drawn = plot(figures(made.table)["accuracy-epsilon"])
    shown = {text.get_text(): text.get_parse_math() for text in drawn.findobj(Text)}
    assert [shown[name] for name in labels.values()] == [True, False, False]
    png(drawn)  # can be drawn


def test_every_figure_and_table_has_the_given_name(tmp_path):
    runs = [of_rank(4, 0.8), result(0.7, method="dpsgd"), of_rank(4, 0.9, epsilon=8.0)]
    made = Comparison(title="t", results=runs, view=View(labels={"lsg": "LSG, rank 4"}))
    files = made.files
    for name in ("table.csv", "table.md", "table.tex"):
        assert "LSG, rank 4" in files[name], name
        assert "lsg (rank" not in files[name], name
    assert "LSG" not in files["results.csv"], "runs keep their names"
    series = {
        one.name
        for charts in figures(made.table).values()
        for chart in charts
        for one in chart.series
    }
    assert "LSG, rank 4" in series
    assert not any(name.startswith("lsg") for name in series)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["lsg"], "expected --label METHOD=NAME, got 'lsg'"),
        (["lsg="], "expected --label METHOD=NAME"),
        (["=LSG"], "expected --label METHOD=NAME"),
        (["lsg=A", "lsg=B"], "given twice"),
        (["lsg=A", "dpsgd=A"], "given twice"),
    ],
)
def test_a_wrong_label_is_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        read_labels(pairs)


def test_a_name_for_nothing_and_a_name_of_another_are_refused():
    check_labels({"lsg": "LSG", "lsg (rank 4)": "four"}, ["lsg", "dpsgd"])
    with pytest.raises(ValueError, match="nothing is called that; known: lsg, dpsgd"):
        check_labels({"lsgg": "LSG"}, ["lsg", "dpsgd"])
    with pytest.raises(ValueError, match="another method is called dpsgd"):
        check_labels({"lsg": "dpsgd"}, ["lsg", "dpsgd"])


def tabular(results: list[Result]) -> str:
    return Comparison(title="t", results=results).files["table.tex"]


def test_the_table_of_a_paper_by_hand():
    """Deviations of pairs: 2.0 / sqrt(2) is 1.4 points. One seed more at another epsilon."""
    pairs = {"lsg": (0.79, 0.81), "dp_sgd%": (0.69, 0.712)}
    runs = [
        result(score, method=method, seed=seed)
        for method, scores in pairs.items()
        for seed, score in enumerate(scores)
    ]
    text = tabular([*runs, result(0.9, epsilon=8.0)])
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert rows == [
        "method & $\\varepsilon$ & accuracy $\\pm$ s.d., \\% & behind (s.e.) & $n$ & uplink & saved "
        "\\\\",
        "lsg & 2.999 & \\textbf{80.0 $\\pm$ 1.4} & best & 2 & 100 B & 4.0x \\\\",
        "dp\\_sgd\\% & 2.999 & 70.1 $\\pm$ 1.6 & 9.9 (0.1) & 2 & 100 B & 4.0x \\\\",
        "lsg & 7.999 & 90.0 & -- & 1 & 100 B & 4.0x \\\\",
    ]
    assert re.findall(r"\\(\w+rule)", text) == ["toprule", "midrule", "midrule", "bottomrule"]
    assert text.count("&") == 6 * len(rows), "as many columns in each row"


def test_the_best_is_bold_and_moves_with_the_scores():
    """Control: the other way round, another row is bold."""
    for best, other in (("lsg", "rs"), ("rs", "lsg")):
        scores = ((best, 0.8), (other, 0.7), (best, 0.81), (other, 0.711))
        runs = [result(x, method=name, seed=at // 2) for at, (name, x) in enumerate(scores)]
        text = tabular(runs)
        (bold,) = [line for line in text.splitlines() if "textbf" in line]
        assert bold.startswith(best)


def test_numbers_of_a_frame_are_numbers():
    frame = frame_of(lines([result(0.8), replace(result(None, method="rgp"))]))
    assert list(frame.label) == ["lsg", "rgp"]
    assert frame.accuracy_mean.dtype == float
    assert frame.accuracy_mean.isna().tolist() == [False, True]


def kept(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "grid.toml").write_text(text)
    return folder


def test_folders_of_before_have_no_names_and_two_that_disagree_have_none(tmp_path):
    old = kept(tmp_path / "old", 'workload = "digits"\n[methods.lsg]\n')
    first = kept(tmp_path / "first", '[labels]\nlsg = "LSG"\ndpsgd = "DP-SGD"\n')
    other = kept(tmp_path / "other", '[labels]\nlsg = "ours"\nrgp = "RGP"\n')
    assert kept_labels([old, tmp_path / "nowhere"]) == {}
    assert kept_labels([first, first / "cells" / "lsg-seed0"]) == {"lsg": "LSG", "dpsgd": "DP-SGD"}
    assert kept_labels([first, other]) == {"dpsgd": "DP-SGD", "rgp": "RGP"}
    with pytest.raises(ValueError, match=r"expected \[labels\] of a grid file as texts"):
        kept_labels([kept(tmp_path / "wrong", "[labels]\nlsg = 4\n")])


def test_a_grid_file_holds_its_labels():
    made = grid(labels={"lsg": "LSG, rank 4"})
    assert from_toml(as_toml(made)) == made
    assert "labels" not in as_toml(grid())
