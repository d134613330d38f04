"""The table of a comparison: means over seeds by hand, what a run lacks, and the columns of
table.csv.
"""

import csv
from dataclasses import replace
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest

from fedlsg.simulations.cli.export import paper
from fedlsg.simulations.compare.results.bytes_axis import View
from fedlsg.simulations.compare.results.comparison_files import (
    Comparison,
    page,
    write_page,
    write_tables,
)
from fedlsg.simulations.compare.results.comparison_table import (
    comparison_table,
    notes,
    sentences,
    table_csv,
)
from fedlsg.simulations.compare.results.line_words import mean_of, number_of
from fedlsg.simulations.compare.results.lines import check_labels, higher_is_better, lines
from fedlsg.simulations.compare.results.plots import figures
from fedlsg.simulations.compare.search.trials import Trial, best_of
from fedlsg.simulations.report.pages.facts import facts
from fedlsg.simulations.report.pages.figure import plot
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.workloads.base.split import Chance, standard_error
from tests.simulations.support.compare_cases import CHANCE, result

COLUMNS = [
    *("label", "method", "workload", "model", "rank", "sparsity", "delta", "epsilon_target"),
    *("epsilon_max", "epsilon_outside", "private", "unit", "trust", "rho", "accuracy_mean"),
    *("accuracy_sd", "loss_mean", "standard_error", "n", "planned", "chance", "beats_chance"),
    *("over_linear_probe", "uplink_bytes_per_client_round", "saved_ratio", "uplink_bytes_total"),
    *("downlink_bytes_total", "transfer_seconds", "wall_seconds", "training_seconds"),
    *("behind", "behind_standard_error", "paired_seeds", "may_be_best"),
    *("epsilon_with_choosing", "delta_with_choosing", "uplink_wire_per_client_round"),
]
"""A promise to users: none goes, and none changes its place."""


def rows(results: list[Result]) -> list[dict[str, str]]:
    return list(csv.DictReader(table_csv(lines(results)).splitlines()))


def changed(run: Result, **summary: Any) -> Result:
    return replace(run, summary={**run.summary, **summary})


def test_a_line_by_hand():
    scores = (0.80, 0.85, 0.84)
    runs = [result(score, seed=seed) for seed, score in enumerate(scores)]
    failed = replace(result(None, seed=3), group=runs[0].group)
    (line,) = rows([*runs, failed, result(0.7, method="linear-probe")])[:1]
    assert list(line) == COLUMNS
    assert (line["n"], line["planned"], line["private"], line["rank"]) == ("3", "4", "True", "")
    number = {name: float(text) for name, text in line.items() if text[:1].isdigit()}
    assert number["accuracy_mean"] == pytest.approx(fmean(scores))
    assert number["accuracy_sd"] == pytest.approx(stdev(scores))
    assert number["standard_error"] == pytest.approx(standard_error(scores, Chance(**CHANCE)))
    assert number["over_linear_probe"] == pytest.approx(fmean(scores) - 0.7)
    assert number["epsilon_max"] == pytest.approx(3 - 0.001)  # the largest of its runs
    assert number["uplink_bytes_per_client_round"] == 100
    assert number["saved_ratio"] == 4
    assert line["uplink_wire_per_client_round"] == "", "these runs did not count it"
    assert number["wall_seconds"] == pytest.approx(11)


def test_a_seed_counts_once():
    """Runs of one seed are no further seeds: their mean is one, and their largest epsilon counts."""
    runs = [result(0.8), result(0.6), result(0.9, seed=1), result(0.5, method="rs")]
    line, other = lines(runs).itertuples()
    assert (line.n, line.planned, other.n) == (2, 2, 1)
    assert line.mean == pytest.approx((0.7 + 0.9) / 2)
    assert line.sd == pytest.approx(stdev([0.7, 0.9]))
    assert line.epsilon_max == pytest.approx(3 - 0.001)
    assert len(line.runs) == 3, "each of them spent an epsilon"
    note = "Several runs of one seed count once, by their mean."
    assert note in notes(lines(runs))
    assert note not in notes(lines(runs[1:]))  # negative control


def test_one_name_of_two_methods_is_refused():
    known = ["rgp", "dpsgd"]
    check_labels({"rgp": "X", "dpsgd": "Y"}, known)  # negative control
    for labels in ({"rgp": "X", "dpsgd": "X"}, {"rgp (rank 4)": "X", "rgp (rank 8)": "X"}):
        with pytest.raises(ValueError, match="would all be called X: give each its own name"):
            check_labels(labels, known)


def test_the_wire_is_that_of_a_client_and_round():
    sent = {"uplink_bytes_wire": 50_000}
    (line,) = rows([changed(result(0.8, seed=seed), **sent) for seed in range(2)])
    assert float(line["uplink_wire_per_client_round"]) == 50_000 / result(0.8).messages


def test_a_number_that_one_run_lacks_is_no_mean_of_the_others():
    whole = [result(0.8), result(0.9, seed=1)]
    lacking = [whole[0], changed(whole[1], wall_seconds=None, accuracy=None)]
    (line,), (control,) = rows(lacking), rows(whole)
    assert (line["wall_seconds"], line["accuracy_mean"], line["accuracy_sd"]) == ("", "", "")
    assert line["loss_mean"] == "0.5"  # the scores are losses then
    assert "" not in (control["wall_seconds"], control["accuracy_mean"], control["accuracy_sd"])


def test_lines_are_in_the_order_of_targets_then_of_means():
    given = [
        result(0.97, method="sgd", epsilon=None),
        result(None, method="rgp"),
        result(0.8),
        result(0.9, method="dpsgd"),
        result(0.7, method="rs", epsilon=1.0),
    ]
    assert list(lines(given).method) == ["rs", "dpsgd", "lsg", "rgp", "sgd"]


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("by_loss", [False, True])
def test_every_ranking_asks_for_the_direction_once(by_loss, planted, monkeypatch):
    """Control: with the opposite direction planted, every ranking turns round."""
    if planted:
        opposite = "fedlsg.simulations.compare.results.lines.higher_is_better"
        monkeypatch.setattr(opposite, lambda name: not higher_is_better(name))
    runs = [
        of_score(score + 0.001 * rank * seed, rank, by_loss, seed)
        for rank, score in ((4, 0.9), (8, 0.6), (16, 0.7))
        for seed in range(3)
    ]
    table = lines(runs)
    more = by_loss == planted
    best, worst = (4, 8) if more else (8, 4)
    assert list(table["rank"]) == [best, 16, worst]
    assert f"{'highest' if more else 'lowest'} mean" in sentences(table)[0]
    shown = comparison_table(table)
    score = shown.columns.index("test loss ± s.d." if by_loss else "accuracy ± s.d., %")
    assert [score in row.best for row in shown.rows] == [True, False, False]
    trials = [Trial(arm=None, number=at, params={}, result=run) for at, run in enumerate(runs)]  # type: ignore[arg-type]
    assert best_of(trials).result.settings["rank"] == best
    (axes,) = figures(table)["accuracy-heat"].axes
    (image,), (frame,) = axes.images, axes.patches
    assert round(frame.get_x() + 0.46) == [4, 8, 16].index(best)
    assert image.cmap.name == ("viridis" if more else "viridis_r")


def of_score(score: float, rank: int, by_loss: bool, seed: int) -> Result:
    varied = {"rank": rank, "sparsity": 0.5}
    run = replace(result(score, settings=varied, seed=seed), varied=tuple(varied.items()))
    return changed(run, **({"accuracy": None, "loss": score} if by_loss else {}))


SCORES = {
    "dpsgd": (0.8222, 0.8361, 0.8000),
    "rgp": (0.7583, 0.7917, 0.7889),
    "lsg": (0.7583, 0.7861, 0.7556),
}
"""Three methods, paired by seed: 6.39, 4.44, 1.11 and 6.39, 5.00, 4.44 points behind."""


def three(seeds: int = 3) -> list[Result]:
    return [
        result(score, method=method, seed=seed)
        for method, scores in SCORES.items()
        for seed, score in enumerate(scores[:seeds])
    ]


def test_every_line_says_how_far_it_is_behind_the_best():
    """By hand: t(0.975, 2) is 4.303, so 4.0 ± 1.5 may be chance and 5.3 ± 0.6 is not."""
    table = lines(three())
    best, rgp, lsg = table.itertuples()
    for line in (rgp, lsg):
        lags = [a - b for a, b in zip(SCORES["dpsgd"], SCORES[line.label], strict=True)]
        assert line.behind == pytest.approx(fmean(lags))
        assert line.behind_standard_error == pytest.approx(stdev(lags) / 3**0.5)
    assert [best.may_be_best, rgp.may_be_best, lsg.may_be_best] == [True, True, False]
    shown = comparison_table(table)
    place = shown.columns.index("behind (s.e.)")
    assert [row.cells[place] for row in shown.rows] == ["best", "4.0 (1.5) ≈", "5.3 (0.6)"]
    bold = [line for line in Comparison(title="t", results=three()).files["table.tex"].splitlines()]
    assert [line.split(" ")[0] for line in bold if "textbf" in line] == ["dpsgd", "rgp"]


def test_where_nothing_is_known_of_chance_every_line_may_be_the_best():
    """One seed, or none in common; and who has no rival is not the best of anything."""
    assert all(line.may_be_best for line in lines(three(seeds=1)).itertuples())
    apart = [result(0.9), result(0.1, method="dpsgd", seed=1)]
    assert [line.may_be_best for line in lines(apart).itertuples()] == [True, True]
    (alone,) = lines(three()[:3]).itertuples()
    assert (alone.behind, alone.may_be_best) == (None, None)
    private, free = lines([result(0.8), result(0.9, method="sgd", epsilon=None)]).itertuples()
    assert private.behind is None is free.behind


def test_seeds_that_differ_by_the_same_prove_nothing():
    """By hand: 14 of 360 rows in both seeds, sqrt(.0389 * .9611 / 720) is 0.72 points, and two
    seeds need 12.7 of them. Of 10 seeds 2.3 do.
    """

    def pair(seeds: int, apart: float = 14 / 360, **chance: float) -> list[Result]:
        return [
            replace(
                run, summary={**run.summary, "chance": CHANCE | {"test_examples": 360} | chance}
            )
            for seed in range(seeds)
            for run in (
                result(0.85 + 0.01 * seed, seed=seed),
                result(0.85 + 0.01 * seed - apart, method="dpsgd", seed=seed),
            )
        ]

    def behind(runs: list[Result]) -> str:
        shown = comparison_table(lines(runs))
        return shown.rows[1].cells[shown.columns.index("behind (s.e.)")]

    assert behind(pair(2)) == "3.9 (0.7) ≈"
    assert "(paired over 2 seeds; the lead may be chance)" in sentences(lines(pair(2)))[0]
    assert behind(pair(10)) == "3.9 (0.3)"
    assert behind(pair(2, test_examples=360e4)) == "3.9 (0.0072)"  # control: of many rows
    unknown = [replace(run, summary={**run.summary, "chance": None}) for run in pair(3)]
    assert behind(unknown) == "3.9 ≈"
    assert "exactly so in all 3 seeds, so the lead may be chance" in sentences(lines(unknown))[0]
    assert behind(pair(2, apart=0.0)) == "best"


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_two_seeds_separate_hardly_anything_and_a_line_says_so(seeds):
    said = [words for words in notes(lines(three(seeds))) if words.startswith("Two seeds")]
    words = (
        "Two seeds separate hardly anything: a difference is no chance from 12.7 standard errors "
        "on, with three seeds from 4.3: --seeds 3 or more."
    )
    assert said == ([words] if seeds == 2 else [])
    alone = [run for run in three(seeds) if run.label == "dpsgd"]
    assert not any(one.startswith("Two seeds") for one in notes(lines(alone)))


def test_one_method_has_no_highest_mean():
    (said,) = sentences(lines(three()[:3]))
    assert said.startswith(
        "At epsilon 3, dpsgd has a mean accuracy of 81.9 ± 1.8 % (± s.d. over 3 seeds)"
    )
    assert "highest" in sentences(lines(three()))[0]  # control


def test_plus_or_minus_is_the_standard_deviation_everywhere_and_says_so():
    """Control: the standard error of these means, 2.3 points, is nowhere after ±."""
    made = Comparison(title="t", results=three())
    page = write_texts(made)
    for name in ("table.md", "table.tex", "page"):
        assert "81.9 ± 1.8" in page[name].replace(r"$\pm$", "±"), name
        assert "± 2.3" not in page[name].replace(r"$\pm$", "±"), name
        assert "standard deviation (s.d.)" in page[name], name
    for name, charts in figures(made.table).items():
        for chart in charts:
            what = "band: worst to best" if "curves" in name else "bars: ± s.d."
            assert chart.spread == f"{what} {'of' if 'curves' in name else 'over'} 3 seeds"
            label = plot([chart]).axes[0].get_xlabel()
            assert label.endswith(chart.spread), "a file has no caption"
    assert {chart.spread for chart in figures(lines(three(1)))["accuracy-epsilon"]} == {""}


def write_texts(made: Comparison) -> dict[str, str]:
    return made.files | {"page": page(made, figures(made.table))}


def test_an_axis_of_accuracies_ends_a_little_beyond_the_marks():
    """Nothing touches the frame, and marks are not in a corner of it."""
    for scores in (SCORES, {"dpsgd": (0.999, 1.0, 0.998), "lsg": (0.95, 0.96, 0.94)}):
        runs = [
            sent(result(score, method=method, seed=seed), {"dpsgd": 9_660_000, "rgp": 2_492_000})
            for method, own in scores.items()
            for seed, score in enumerate(own)
        ]
        table = lines(runs)
        ends = [
            line.height + side
            for line in table.itertuples()
            for side in (-line.spread, line.spread)
        ]
        drawn = figures(table)
        for axis in (drawn["accuracy-epsilon"][0].x, drawn["accuracy-bytes"][0].y):
            assert axis.low < min(ends)
            assert max(ends) < axis.high <= 100 or (axis.high == 100 and max(ends) >= 99)
            assert max(ends) - min(ends) > 0.5 * (axis.high - axis.low)


def sent(run: Result, bytes_of: dict[str, int]) -> Result:
    return changed(run, uplink_bytes=bytes_of.get(run.method, 2_188_000))


def test_a_figure_of_a_paper_has_no_label_next_to_names_and_enough_ticks():
    """From 2.2 to 9.7 MB; a stranger saw two ticks, and "Accuracy" next to the methods."""
    bytes_of = {"dpsgd": 9_660_000, "rgp": 2_492_000, "lsg": 2_188_000}
    drawn = figures(lines([sent(run, bytes_of) for run in three()]))
    (axes,) = paper(drawn["accuracy-epsilon"][0]).axes
    assert axes.get_ylabel() == ""
    assert [label.get_text() for label in axes.get_yticklabels()] == ["lsg", "rgp", "dpsgd"]
    (axes,) = paper(drawn["accuracy-bytes"][0]).axes
    assert axes.get_ylabel() == "test accuracy, %"
    low, high = axes.get_xlim()
    assert sum(low <= at <= high for at in axes.get_xticks()) >= 3
    near = {"dpsgd": 2_500_000, "rgp": 2_300_000, "lsg": 2_188_000}
    (axes,) = paper(figures(lines([sent(run, near) for run in three()]))["accuracy-bytes"][0]).axes
    low, high = axes.get_xlim()
    assert sum(low <= at <= high for at in axes.get_xticks()) >= 3


def test_one_method_has_the_figures_that_say_something():
    """A single mark says no more than the table; equal bytes are no axis."""
    assert list(figures(lines(three()[:3]))) == ["learning-curves"]
    assert list(figures(lines(three()))) == ["accuracy-epsilon", "learning-curves"]
    other = [sent(run, {"dpsgd": 9_660_000}) for run in three()]
    assert "accuracy-bytes" in figures(lines(other))


def test_equal_values_are_not_marked_as_the_best():
    shown = comparison_table(lines(three()))
    place = shown.columns.index("uplink")
    assert not any(place in row.best for row in shown.rows)
    other = comparison_table(
        lines([changed(run, uplink_bytes=500) if run.method == "lsg" else run for run in three()])
    )
    assert [place in row.best for row in other.rows] == [False, False, True]


def test_rows_that_were_held_out_are_no_test_split():
    """A page of trials named 144 held-out training rows a test split."""
    held = [replace(run, settings={**run.settings, "holdout": 0.1}) for run in three()]
    public = [replace(run, settings={**run.settings, "public_rows": "synthetic"}) for run in held]
    names = [
        [name for name in facts(runs) if "rows" in name or "split" in name]
        for runs in (held, public, three())
    ]
    assert names == [["held-out training rows"], ["held-out public rows"], ["test split"]]
    for runs, word in ((held, "held-out accuracy, %"), (three(), "test accuracy, %")):
        assert figures(lines(runs))["learning-curves"][0].y.label == word


@pytest.mark.parametrize("counted", [True, False])
def test_the_bytes_axis_where_no_byte_may_be_seen(counted, tmp_path):
    """With trust=server the messages of a run are not counted."""
    run = result(0.8)
    hidden = {name: value for name, value in run.summary.items() if "bytes" not in name}
    runs = [run if counted else replace(run, summary=hidden | {"trust": "server"})]
    made = Comparison(title="digits", results=runs, view=View(bytes=True))
    write_tables(tmp_path, made)
    write_page(tmp_path, made)
    assert (tmp_path / "bytes.md").exists()
    assert (tmp_path / "plots" / "accuracy-total-bytes.png").exists() == counted


def test_a_mark_without_an_epsilon_target_names_none():
    """A missing number is None in the table, not NaN, which people would read."""
    runs = [result(0.8), result(0.9, method="sgd", epsilon=None)]
    charts = figures(lines(runs), View(bytes=True))["accuracy-total-bytes"]
    words = {word for chart in charts for series in chart.series for word in series.words}
    assert words == {"lsg at epsilon 3", "sgd, NOT PRIVATE"}


@pytest.mark.parametrize(
    ("share", "points"),
    [(0.1234, "12.3"), (0.00096, "0.1"), (0.00094, "0.094"), (0.0, "0"), (None, "")],
)
def test_a_difference_has_as_many_digits_behind_as_ahead(share, points):
    """-12.34 points were "-12"."""
    for by_loss in (False, True):
        line = SimpleNamespace(by_loss=by_loss)
        value = share and (100 * share if by_loss else share)
        assert number_of(line, value) == points
        if value:
            assert number_of(line, -value) == f"-{points}"


def test_the_column_of_losses_says_which_rows_they_are_of():
    """Losses of held-out rows were in a column "test loss"."""
    tested = [replace(run, summary={**run.summary, "accuracy": None}) for run in three()]
    held = [replace(run, settings={**run.settings, "holdout": 0.1}) for run in tested]
    for runs, words in ((tested, "test loss ± s.d."), (held, "held-out loss ± s.d.")):
        assert mean_of(lines(runs).itertuples()) == words
        assert words in comparison_table(lines(runs)).columns


def varied(run: Result, name: str, value: object) -> Result:
    settings = {**run.settings, name: value}
    return replace(
        run,
        settings=settings,
        varied=((name, value),),
        group=(run.label, run.epsilon_target, value),
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rank", (4, 16)),
        ("local_steps", (1, 5, 20)),
        ("clients", (8, 16)),
        ("clip_norm", (0.5, 10.0)),
    ],
)
def test_a_chart_of_a_setting_needs_no_order_of_its_values(name, values):
    """Names sort as text, in which 16 is before 4: the chart of such values raised KeyError."""
    runs = [
        varied(result(0.8 + epsilon / 100, epsilon=epsilon), name, value)
        for value in values
        for epsilon in (3.0, 8.0)
    ]
    runs += [result(0.7, method="dpsgd"), result(0.75, method="dpsgd", epsilon=8.0)]
    (chart,) = figures(lines(runs))["accuracy-varied"]
    families = [one for one in chart.series if one.name.startswith("lsg")]
    assert [one.x for one in families] == [values, values]
    assert len({(one.marker, one.dashes) for one in families}) == 2, "an epsilon each"
    assert len({one.colour for one in families}) == 1
    assert sum(one.name.startswith("dpsgd") for one in chart.series) == 2
