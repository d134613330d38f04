"""After a search: chosen settings against the same method without it, and what both cost."""

import math
from dataclasses import replace
from typing import Any

import pytest
import tomli_w

from fedlsg.simulations.compare.grid.choosing import Choosing
from fedlsg.simulations.compare.grid.grid_file import as_toml, from_toml
from fedlsg.simulations.compare.results.bytes_axis import View
from fedlsg.simulations.compare.results.collect import kept_choosing
from fedlsg.simulations.compare.results.comparison_files import Comparison, page
from fedlsg.simulations.compare.results.comparison_table import sentences
from fedlsg.simulations.compare.results.lines import lines
from fedlsg.simulations.compare.results.search_paid import search_paid
from fedlsg.simulations.storage.results import Result
from tests.simulations.support.compare_cases import grid, result

CHOSEN = Choosing(
    epsilon=6.552,
    delta=1e-5,
    trials=8,
    rows="held-out rows of the private training split",
    untouched={"dpsgd": "dpsgd-untouched"},
)
FREE = replace(CHOSEN, epsilon=0.0, delta=0.0, rows="synthetic inputs")


def runs(label: str, scores: tuple[float, ...], epsilon: float = 2.0) -> list[Result]:
    return [
        result(score, method="dpsgd", label=label, seed=seed, epsilon=epsilon)
        for seed, score in enumerate(scores)
    ]


def final(seeds: int = 2, untouched: tuple[float, ...] = (0.8222, 0.8361)) -> list[Result]:
    """A stranger's search on digits: 85.0 and 85.3 %, without it 82.2 and 83.6 %."""
    return runs("dpsgd", (0.8500, 0.8528)[:seeds]) + runs("dpsgd-untouched", untouched[:seeds])


def made(results: list[Result], choosing: Choosing | None) -> Comparison:
    return Comparison(title="t", results=results, view=View(choosing=choosing))


def test_one_sentence_says_whether_the_search_paid():
    """By hand: +2.8 and +1.7 points, mean 2.2, standard error 0.6; two seeds need 12.7 of them."""
    (said,) = search_paid(lines(final(), choosing=CHOSEN))
    assert "gained, which two seeds cannot show (give --seeds 3 or more): chosen minus" in said
    assert "minus untouched settings is +2.2 points" in said
    assert "(standard error 0.6, paired over 2 seeds; it may be chance)" in said
    near = final(untouched=(0.8478, 0.8361))
    assert "may have gained nothing: chosen" in search_paid(lines(near, choosing=CHOSEN))[0]
    three = ("dpsgd", (0.85, 0.8528, 0.851)), ("dpsgd-untouched", (0.7, 0.7042, 0.7))
    sure = [run for pair in three for run in runs(*pair)]
    assert "at epsilon 2 gained: chosen" in search_paid(lines(sure, choosing=CHOSEN))[0]
    worse = final(untouched=(0.95, 0.9542))
    (said,) = search_paid(lines(worse, choosing=CHOSEN))
    assert "lost: chosen minus untouched settings is -10.1 points" in said
    assert "(1 seed)" in search_paid(lines(final(seeds=1), choosing=CHOSEN))[0]
    assert search_paid(lines(final())) == []


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_sum_counts_every_seed(seeds):
    """Control: with one seed it is another sum."""
    chosen, untouched = lines(final(seeds=seeds), choosing=CHOSEN).itertuples()
    spent = sum(run.epsilon_max for run in chosen.runs)
    assert chosen.epsilon_with_choosing == pytest.approx(6.552 + spent)
    assert untouched.epsilon_with_choosing == pytest.approx(spent)
    assert chosen.delta_with_choosing == pytest.approx((1 + seeds) * 1e-5)
    (said,) = search_paid(lines(final(seeds=seeds), choosing=CHOSEN))
    whole = {1: "with its 1 run 8.551 in all", 2: "with its 2 runs 10.549 in all"}[seeds]
    assert f"choosing cost epsilon 6.552, {whole} at delta {(1 + seeds) * 1e-5:g}" in said


def test_a_run_that_is_not_finished_counts_with_its_target():
    """It has spent some of it, and will spend the rest."""
    begun = final()
    begun[1] = replace(begun[1], status="interrupted", summary={})
    chosen, _ = lines(begun, choosing=CHOSEN).itertuples()
    assert chosen.epsilon_with_choosing == pytest.approx(6.552 + begun[0].epsilon_max + 2.0)


def test_an_untouched_run_of_no_more_epsilon_is_named_where_it_is_known():
    (said,) = search_paid(lines(final(), choosing=CHOSEN))
    assert "at epsilon 10.5 reaches is not known: fedlsg compare --grid grid.toml" in said
    for epsilon, known in ((10.5, True), (12.0, False)):  # more than the search costs
        more = [*final(), *runs("dpsgd-untouched", (0.94, 0.939), epsilon)]
        (said,) = search_paid(lines(more, choosing=CHOSEN))
        named = "at epsilon 10.5, no more than choosing and runs cost together, has 94.0 ± 0.1 %"
        assert (named in said) == known
        assert ("by the means, the search did not pay" in said) == known
    paid = [*final(), *runs("dpsgd-untouched", (0.84, 0.839), 10.5)]
    assert "by the means, the search paid" in search_paid(lines(paid, choosing=CHOSEN))[0]


@pytest.mark.parametrize("choosing", [CHOSEN, FREE])
def test_headline_page_and_files_have_the_cost_of_choosing_or_that_it_is_free(choosing):
    one = made(final(), choosing)
    headline = sentences(one.table)[0]
    html = page(one, {})
    warnings = html.split("<nav")[0].count('class="warning"')
    if choosing.free:
        assert headline.startswith("At epsilon 2 (choosing its settings cost no privacy), dpsgd")
        for text in (html, one.files["table.tex"], one.files["table.md"]):
            assert "choosing cost no privacy" in text
        assert warnings == 0
    else:
        whole = "(10.549 with choosing its settings, over 2 runs)"
        assert headline.startswith(f"At epsilon 2 {whole}, dpsgd has the highest mean")
        for text in (html, one.files["table.tex"], one.files["table.md"]):
            assert "10.549" in text
            assert "the epsilon of choosing is 6.552 at delta 1e-05" in text
            assert "the epsilon of choosing is inf for them" in text
        assert warnings == 2  # as on the page of the search
    assert "epsilon_with_choosing" in one.files["table.csv"].splitlines()[0]
    control = made(final(), None).files["table.tex"]
    assert "choosing" not in control


def test_a_note_for_latex_is_text():
    """Rows may have any name."""
    one = made(final(), replace(FREE, rows="public rows of my_data & 50%"))
    assert "public rows of my\\_data \\& 50\\%: choosing cost no privacy." in one.files["table.tex"]


def test_a_search_that_changed_nothing_says_so():
    same = replace(CHOSEN, untouched={"dpsgd": "dpsgd"})
    (said,) = search_paid(lines(final()[:2], choosing=same))
    assert "found nothing better than the values without a search; choosing cost epsilon" in said


@pytest.mark.parametrize("epsilon", [6.552, math.inf, 0.0])
def test_a_grid_file_holds_how_its_settings_were_chosen(epsilon, tmp_path):
    chosen = grid(choosing=vars(replace(CHOSEN, epsilon=epsilon)))
    assert from_toml(as_toml(chosen)) == chosen
    for wrong in ({"epsilon": 1.0}, [], vars(CHOSEN) | {"cost": 1}, vars(CHOSEN) | {"epsilon": -1}):
        with pytest.raises(ValueError, match=r"expected \[choosing\] of a grid file"):
            grid(choosing=wrong)


def test_later_commands_on_the_folder_know_the_cost(tmp_path):
    """Of one comparison it is that of its lines; of several, a note."""

    def folder(name: str, **keys: Any) -> Any:
        (tmp_path / name).mkdir()
        text = tomli_w.dumps(as_toml(grid(**keys)))
        (tmp_path / name / "grid.toml").write_text(text)
        return tmp_path / name

    chosen, plain = folder("chosen", choosing=vars(CHOSEN)), folder("plain", notes=["old"])
    assert kept_choosing([chosen]) == (CHOSEN, ())
    assert kept_choosing([chosen / "cells" / "dpsgd-seed0"]) == (CHOSEN, ())
    assert kept_choosing([chosen, plain]) == (None, ("old", *CHOSEN.words))
    assert kept_choosing([tmp_path / "nowhere"]) == (None, ())
