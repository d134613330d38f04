"""Which cells a grid has, in which order, with which settings; and what it refuses."""

import pytest

from tests.simulations.support.compare_cases import grid


def test_the_cells_of_a_small_grid_by_hand():
    cells = grid(seeds=2, epsilons=[1.0, 3.0], ranks=[4, 8]).cells()
    assert [cell.name for cell in cells] == [
        f"{name}-seed{seed}"
        for seed in (0, 1)
        for name in ("lsg-epsilon1-rank4", "lsg-epsilon1-rank8", "sgd", "lsg-epsilon3-rank4", "lsg-epsilon3-rank8")
    ]
    assert cells[1].given == {
        "workload": "digits", "method": "lsg", "seed": 0, "engine": "local", "epsilon": 1.0, "rank": 8,
    }  # fmt: skip
    assert cells[2].given == {"workload": "digits", "method": "sgd", "seed": 0, "engine": "local"}


REFUSED = {
    "no method": ({"methods": {}}, "at least one method: give --methods"),
    "unknown method": ({"methods": {"lsgg": {}}}, "unknown method 'lsgg'.*did you mean 'lsg'"),
    "unknown key": ({"epsilon": [1.0]}, "unknown key of a grid file 'epsilon'.*did you mean 'epsilons'"),
    "unknown setting": ({"settings": {"sparcity": 1}}, "unknown setting 'sparcity'"),
    "hostile label": ({"methods": {"../../lsg": {"method": "lsg"}}}, "expected a method label"),
    "seed as a setting": ({"settings": {"seed": 3}}, "seed is an axis of the grid: give it as --seeds"),
    "epsilon as a setting": ({"methods": {"lsg": {"epsilon": 3}}}, "epsilon is an axis of the grid"),
    "a preset in a grid": ({"methods": {"lsg": {"preset": "x"}}}, "a preset is the setting of one run"),
    "twice": ({"epsilons": [1.0, 1.0]}, "epsilons without repetitions"),
    "noise and epsilon": ({"epsilons": [1.0], "settings": {"noise_multiplier": 2}}, "either --epsilons or"),
    "nobody has it": ({"settings": {"drop_rate": 0.5}}, "none of the methods lsg, sgd has a setting drop_rate"),
    "no number": ({"ranks": ["four"]}, "expected ranks as a list of numbers"),
    "half a rank": ({"ranks": [1.5]}, "expected ranks as a list of numbers"),
    "epsilon below 0": ({"epsilons": [-1.0]}, "expected epsilons > 0 and finite, got -1"),
    "no rank": ({"ranks": [0, 4]}, "expected ranks >= 1, got 0, 4"),
    "all frozen": ({"sparsities": [1.0]}, r"expected sparsities in \[0, 1\), got 1"),
    "an axis that nobody has": (
        {"methods": {"dpsgd": {}}, "ranks": [4]},
        "none of the methods dpsgd has a rank: leave",
    ),
    "no seed": ({"seeds": 0}, "one seed at least"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_grid_refuses(kind):
    keys, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        grid(**keys)
