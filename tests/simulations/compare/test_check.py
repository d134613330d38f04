"""Cells that cannot run are found before the first one: by settings, by data, and by the model."""

import pytest

from simulations.compare.command import accepted
from simulations.compare.grid_file import check_cells
from tests.simulations.support.compare_cases import grid

SMALL = {"rounds": 2, "noise_multiplier": 2.0}


def cells(methods, **settings):
    vary = settings.pop("vary", {})
    return grid(methods=methods, settings=SMALL | settings, vary=vary, seeds=2).cells()


def test_cells_that_run_are_accepted():
    check_cells(cells({"lsg": {}, "dpsgd": {}, "sgd": {}}))


@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        ({"lsg": {"rank": 4000}}, {}, r"lsg-seed0, lsg-seed1: rank=4000 carries no layer"),
        ({"lsg": {}}, {"vary": {"clients": [2, 5000]}}, r"lsg-clients5000-seed0, .*: expected clients in 1..1437"),
        ({"lsg": {}}, {"vary": {"rank": [4, 4000]}}, r"lsg-rank4000-seed0.*rank=4000 carries no layer"),
        ({"lsg": {"sample_rate": 0.1, "batch_size": 3}}, {}, "lsg-seed0, lsg-seed1: .* give either sample_rate"),
    ],
)
def test_those_that_cannot_are_named_with_the_reason(methods, settings, words):
    with pytest.raises(ValueError, match=f"cells cannot run, so none was started: {words}"):
        check_cells(cells(methods | {"dpsgd": {}}, **settings))


def test_a_method_is_left_out_only_if_every_cell_of_it_is_refused():
    varied = grid(methods={"dpsgd": {}, "sgd": {}}, vary={"trust": ["client", "secure"]})
    assert accepted(varied) == (varied, {})
    with pytest.raises(ValueError, match="sgd-trustsecure-seed0: trust=secure"):
        check_cells(varied.cells())
