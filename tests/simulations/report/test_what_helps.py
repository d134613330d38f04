"""What would help a run: each hint where its numbers say so, and not where they do not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedlsg import extras
from fedlsg.simulations.report.page_of_run.what_helps import end_of, hints
from fedlsg.simulations.storage.results import Result
from tests.simulations.support.compare_cases import result, row

FALLING = [2.0 - 0.04 * at for at in range(40)]
FLAT = [0.5 + 0.001 * (at % 3) for at in range(40)]
RISING = [0.5 + 0.02 * at for at in range(40)]
LAST_FALL = [0.266 + 0.1 * (1 - at / 40) ** 2 for at in range(40)]
FELL_THEN_ROSE = [0.422 + 0.0012 * abs(245 - at) + 0.002 * (at % 3) for at in range(300)]
"""Its last quarter is lower than the one before, and ends above its lowest rounds."""
OVERFIT = [0.633, 0.45, 0.4, 0.385, 0.387, 0.44] + [0.59 + 0.001 * (at % 3) for at in range(34)]


def run(
    losses: Sequence[float] = FLAT,
    accuracies: Sequence[float] | None = None,
    *,
    method: str = "lsg",
    **summary: Any,
) -> Result:
    """A good run of 40 rounds that has spent its budget, with other numbers."""
    good = result(0.8, method=method, settings={"rounds": len(losses)})
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
        (run(LAST_FALL), ["More rounds"]),  # a run trained further, by 5 % in its last quarter
        (run(FELL_THEN_ROSE), ["Fewer rounds, or smaller steps"]),
        (run(OVERFIT), ["Fewer rounds, or smaller steps"]),  # flat at its end, above its best part
        (run(method="dpsgd", rho=0.3), []),
        (run(rho=0.3), ["A method that sends more"]),
        (run(rho=0.3, uplink_bytes=4000), []),  # it sends as much
        (run(rho=0.3, method="probe"), ["A method that sends more"]),
        (run(accuracies=[0.9] * 20 + [0.8] * 20), ["Keep the best round"]),
        (run(accuracies=[0.82] * 20 + [0.8] * 20), []),  # within the error of the test split
        (run(epsilon_max=1.5), ["The rest of the budget"]),
        (run(rho=3.0), ["Less noise for the same epsilon"]),
        (run(accuracy_by_client={"mean": 0.8, "worst": 0.6}), ["The worst client"]),
        (run(accuracy_by_client={"mean": 0.8, "worst": 0.75}), []),
        (run(FALLING, [0.1] * 40), ["Away from guessing"]),  # its curve says nothing more
        (run(FALLING, [0.1] * 40, rho=20.0), ["Away from guessing"]),  # which names the noise
    ],
)
def test_a_hint_follows_from_its_numbers(made, first):
    assert said(made) == [*first, *USUAL]


def test_what_does_not_go_on_in_place_is_not_told_to():
    """Budgets of clients were planned for its rounds."""

    def more(**settings: object) -> str:
        made = run(FALLING)
        return dict(hints(replace(made, settings={**made.settings, **settings}))).get(
            "More rounds", ""
        )

    assert "Train further: fedlsg resume RUN --rounds 80 --epsilon LARGER" in more()  # control
    for setting in ("client_epsilons", "client_deltas"):
        words = more(**{setting: "#0=1e-6, #1=1e-5"})
        assert "resume" not in words
        assert f"the same command with --start-from RUN and -c {setting}=...: each" in words
    assert "same call with start_from=RUN and client_" in more(
        client_epsilons="#0=1", workload="own"
    )


def test_a_run_of_python_goes_on_in_python():
    command, call = run(FALLING), run(FALLING)
    call = replace(call, settings={**call.settings, "workload": "own"})
    (_, words), *_ = hints(command)
    assert "fedlsg resume RUN --rounds 80 --epsilon LARGER" in words
    (_, words), *_ = hints(call)
    assert "the same call with resume=True, rounds=80, epsilon=LARGER" in words
    assert "fedlsg resume" not in words


def of_hospitals(made: Result) -> Result:
    """The run as one of a deployment, whose run config names its own folder."""
    return replace(made, settings={**made.settings, "engine": "flower", "run_dir": "/runs/one"})


@pytest.mark.parametrize(
    ("made", "more"), [(run(FALLING), True), (run(rho=0.3), False), (run(), False)]
)
def test_a_deployment_gets_no_advice_that_is_refused(made, more):
    """Its clients' data and ledgers are elsewhere: no resume with more rounds, no mechanism=none,
    no comparison.
    """
    words = " ".join(text for _, text in hints(of_hospitals(made)))
    for refused in ("resume", "mechanism=none", "fedlsg compare", "fedlsg run", " -c "):
        assert refused not in words
    assert "public rows" in words
    assert ("rounds = 80 in the run config" in words) == more
    simulated = replace(made, settings={**made.settings, "engine": "flower"})
    assert hints(simulated) == hints(made)  # a control: of Flower's simulation


def without_privacy(accuracy):
    return result(accuracy, method="dpsgd", epsilon=None)


@pytest.mark.parametrize(
    ("made", "against", "names", "words"),
    [
        (run(), 0.9, [], ""),
        (
            run(accuracies=[0.917] * 40, rho=0.318),
            0.958,
            ["A method that sends more"],
            "4.1 points are lost to privacy. The noise of a step is short (rho 0.32), so fewer "
            "values save little noise and may cost accuracy. dpsgd or probe may gain, with up to "
            "4.0 times the bytes: fedlsg compare digits --methods lsg,dpsgd,probe --epsilons 3.",
        ),
        (run(accuracies=[0.8] * 40), 0.81, ["A smaller epsilon"], "level with that without privac"),
        (run(FALLING, [1.0] * 40, rho=3.0), None, ["A smaller epsilon"], "--epsilon 1.5"),
    ],
)
def test_what_follows_from_the_accuracy_without_privacy(made, against, names, words):
    """A run that lacks nothing is told of a smaller epsilon alone."""
    other = None if against is None else without_privacy(against)
    found = hints(made, against=other)
    assert [name for name, _ in found] == names
    assert words in " ".join(sentence for _, sentence in found)


def test_a_hint_names_the_extra_that_its_command_needs(monkeypatch):
    """``fedlsg report --against`` and ``fedlsg compare`` draw with pandas."""
    assert "pip install" not in " ".join(words for _, words in hints(run(rho=0.3))), "it is here"
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for _, sentence in hints(run(rho=0.3)):
        assert ("fedlsg[plots]" in sentence) == (
            "fedlsg report" in sentence or "compare" in sentence
        )


def test_a_run_on_images_is_told_of_public_features():
    images = {"rows": {"images": True}}
    assert said(replace(run(), start=images)) == ["Public features", *USUAL]
    start = replace(run(), start=images)
    start = replace(start, settings={**start.settings, "pretrained": "weights"})
    assert said(start) == said(run()) == USUAL


def test_what_was_said_before_the_run_comes_first():
    noted = replace(run(), start={"notes": ["learning_rate=0.1 turns the rule off"]})
    assert hints(noted)[0] == ("Said before the run", "learning_rate=0.1 turns the rule off.")


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
