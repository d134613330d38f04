"""Settings that a comparison varies: cells, refusals, columns, curves, heat maps; the question before a long grid."""

from dataclasses import replace

import pytest

from simulations.compare.cells.grid_file import parse_varied, read_varied
from simulations.rundir.results import Result
from tests.simulations.support.compare_cases import grid, result

CLIPS, NOISES = (0.1, 1.0, 10.0), (0.5, 2.0)
METHODS = {"dpsgd": {}, "lsg": {}, "sgd": {}, "lsg-c3": {"method": "lsg", "clip_norm": 3.0}}


def test_every_method_is_run_with_all_combinations_of_the_settings_that_it_has():
    made = grid(methods=METHODS, vary={"clip_norm": [1, 0.1], "rank": [2, 4]})
    assert [cell.name for cell in made.cells()] == [
        "dpsgd-clip_norm0.1-seed0",
        "lsg-clip_norm0.1-rank2-seed0",
        "sgd-seed0",
        "lsg-c3-rank2-seed0",
        "lsg-clip_norm0.1-rank4-seed0",
        "lsg-c3-rank4-seed0",
        "dpsgd-clip_norm1-seed0",
        "lsg-clip_norm1-rank2-seed0",
        "lsg-clip_norm1-rank4-seed0",
    ]
    assert made.cells()[4].given.items() >= {"clip_norm": 0.1, "rank": 4}.items()
    assert made.cells()[4].varied == (("clip_norm", 0.1), ("rank", 4))
    assert made.dropped() == [("dpsgd", "rank"), ("sgd", "clip_norm"), ("sgd", "rank")]


@pytest.mark.parametrize(
    ("texts", "more", "words"),
    [
        (["clip_norm"], {}, "expected --vary NAME=A,B,C, got 'clip_norm'"),
        (["clip_norm=1,2", "clip-norm=1,2"], {}, "--vary clip_norm is given twice"),
        (["clip_norn=1,2"], {}, "unknown setting 'clip_norn'; did you mean 'clip_norm'"),
        (["clip_norm=1"], {}, "expected two values of clip_norm at least"),
        (["clip_norm=0,1"], {}, "expected 1e-30 <= clip_norm=0"),
        (["epsilon=1,3"], {}, "epsilon is an axis of its own: give it as --epsilons"),
        (["clip_norm=1,2"], {"settings": {"clip_norm": 1.0}}, "clip_norm is varied, and given elsewhere"),
        (["rank=1,2"], {"ranks": [1, 2]}, "rank is varied, and given elsewhere"),
        (["noise_multiplier=1,2"], {"epsilons": [3.0]}, "give either --epsilons or"),
        (["damping=0.1,0.2"], {}, "none of the methods lsg, sgd has a setting damping"),
    ],
)
def test_what_cannot_be_varied_is_refused(texts, more, words):
    with pytest.raises(ValueError, match=words):
        grid(vary=parse_varied(read_varied(texts)), **more)


def accuracy(clip: float, noise: float) -> float:
    """Different for every pair, and not symmetric: best at clip 1, noise 0.5."""
    return 0.9 - 0.2 * abs(CLIPS.index(clip) - 1) - 0.07 * NOISES.index(noise) - 0.01 * CLIPS.index(clip)


def varied(clip: float, noise: float, seed: int, method: str = "dpsgd") -> Result:
    pairs = (("clip_norm", clip), ("noise_multiplier", noise))
    mean = accuracy(clip, noise) + (0.02 if seed else -0.02)
    found = result(mean, method=method, epsilon=8 / noise, seed=seed, settings={"epsilon": None, **dict(pairs)})
    return replace(found, group=(method, *pairs), varied=pairs)
