"""The sentences of a comparison: the highest mean, the fewest bytes, and whether the lead may be chance."""

from simulations.compare.headline import sentences
from simulations.compare.lines import lines
from simulations.rundir.results import Result
from tests.simulations.support.compare_cases import result


def runs(method: str, *accuracies: float, **more: object) -> list[Result]:
    return [result(accuracy, method=method, seed=seed, **more) for seed, accuracy in enumerate(accuracies)]  # type: ignore[arg-type]


def said(*groups: list[Result]) -> list[str]:
    return sentences(lines([run for group in groups for run in group]))


def test_a_clear_lead_and_an_unclear_one():
    clear = said(runs("dpsgd", 0.90, 0.91, 0.92), runs("lsg", 0.80, 0.81, 0.82))[0]
    assert clear.startswith("At epsilon 3, dpsgd has the highest mean accuracy, 91.0 ± 1.0 %, with 4.0x fewer uplink")
    assert "lead" not in clear
    unclear = said(runs("dpsgd", 0.80, 0.95, 0.90), runs("lsg", 0.90, 0.80, 0.92))[0]
    assert "(its lead over lsg is within 2 standard errors)" in unclear
    assert "(one seed in common with lsg, so the lead may be chance)" in said(runs("dpsgd", 0.9), runs("lsg", 0.8))[0]


def test_what_is_not_supported_is_not_said():
    assert said(runs("lsg", 0.10, 0.11)) == ["At epsilon 3 no method is better than guessing."]
    assert said(runs("sgd", 0.97, epsilon=None)) == ["No run is private: sgd, 97.0 %."]
    assert said([result(None)]) == ["No run is finished."]
    seeded = said([result(0.9, private=False), result(0.91, seed=1, private=False)])
    assert seeded == ["No run is private: lsg, 90.5 ± 0.7 %."]
