"""What would help a run: each hint where its numbers say so, and not where they do not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedlsg.simulations.report.page_of_run.what_helps import end_of, hints
from fedlsg.simulations.storage.results import Result
from tests.simulations.support.compare_cases import result, row

FALLING = [2.0 - 0.04 * at for at in range(40)]
FLAT = [0.5 + 0.001 * (at % 3) for at in range(40)]
RISING = [0.5 + 0.02 * at for at in range(40)]


def run(
    losses: Sequence[float] = FLAT, accuracies: Sequence[float] | None = None, **summary: Any
) -> Result:
    """A good run of 40 rounds that has spent its budget, with other numbers."""
    good = result(0.8, settings={"rounds": len(losses)})
    accuracies = [0.8] * len(losses) if accuracies is None else accuracies
    rows = tuple(
        row(at, accuracy, loss=loss)
        for at, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True), 1)
    )
    whole = good.summary | {"rounds": len(losses), "accuracy": accuracies[-1]} | summary
    return replace(good, rows=rows, summary=whole)


def said(made: Result, **more: Any) -> list[str]:
    return [name for name, _ in hints(made, **more)]


USUAL = ["What privacy costs"]
"""Nothing that a good run says of itself answers it."""


@pytest.mark.parametrize(
    ("made", "first"),
    [
        (run(FALLING), ["More rounds"]),
        (run(RISING), ["Fewer rounds, or smaller steps"]),
        (run(FLAT), []),
        (run(FALLING[:6]), []),  # too short to say
        (run(accuracies=[0.9] * 20 + [0.8] * 20), ["Keep the best round"]),
        (run(accuracies=[0.82] * 20 + [0.8] * 20), []),  # within the error of the test split
        (run(epsilon_max=1.5), ["The rest of the budget"]),
        (run(rho=3.0), ["Less noise for the same epsilon"]),
        (run(rho=0.3), []),
        (run(accuracy_by_client={"mean": 0.8, "worst": 0.6}), ["The worst client"]),
        (run(accuracy_by_client={"mean": 0.8, "worst": 0.75}), []),
        (run(FALLING, [0.1] * 40), ["Away from guessing"]),  # its curve says nothing more
        (run(FALLING, [0.1] * 40, rho=20.0), ["Away from guessing"]),  # which names the noise
    ],
)
def test_a_hint_follows_from_its_numbers(made, first):
    assert said(made) == [*first, *USUAL]


def test_a_known_accuracy_without_privacy_is_not_asked_for():
    assert said(run(), against=True) == []


def test_a_run_without_privacy_is_told_so_and_nothing_of_its_noise():
    public = run(private=False, epsilon_max="inf", rho=3.0)
    assert said(public) == ["Privacy"]
    words = dict(hints(replace(run(FALLING), summary=public.summary)))["More rounds"]
    assert "epsilon" not in words
    assert "epsilon" in dict(hints(run(FALLING)))["More rounds"]


def test_an_unfinished_run_has_no_hints():
    assert hints(replace(run(FALLING), status="interrupted", summary={})) == []


def test_the_end_of_a_curve_by_hand():
    """Ten rounds: the last two, 3 and 1, next to 6 and 4; each has variance 2."""
    end = end_of([9.0] * 6 + [6.0, 4.0, 3.0, 1.0], list(range(1, 11)))
    assert end is not None
    assert (end.rounds, end.before, end.last) == (2, 5.0, 2.0)
    assert end.error == pytest.approx(2**0.5)
    assert end.falls
    assert not end.rises
    noisy = end_of([9.0] * 6 + [6.0, 2.0, 4.0, 0.0], list(range(1, 11)))
    assert noisy is not None
    assert not noisy.falls  # 2 points with a standard error of 2.8
