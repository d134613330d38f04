"""Masks by a user's function: what it must return, and what a frame keeps then."""

from functools import partial
from typing import Any

import pytest
import torch

from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, make_blocks
from fedlsg.frame.public import Public
from fedlsg.masks.kinds import keep_chosen
from fedlsg.masks.mask import Mask, apply_mask

BLOCK = Block(parameter="w", part="core", shape=(2, 3))
PUBLIC = Public(weights={"w": torch.arange(12.0).reshape(3, 4)})


def own_choice(made: Any, block: Block, public: Public) -> Any:
    """What a test says."""
    return made


def test_the_kept_positions_by_hand():
    kept = torch.tensor([[True, False, True], [False, False, True]])
    keep = keep_chosen(BLOCK, partial(own_choice, kept), PUBLIC)
    assert (keep.axis, keep.index.tolist()) == (None, [0, 2, 5])
    assert (
        keep_chosen(BLOCK, partial(own_choice, torch.ones(2, 3, dtype=torch.bool)), PUBLIC)
        is EVERYTHING
    )


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            torch.ones(3, 2).bool(),
            r"a boolean tensor of shape \(2, 3\), got torch.bool of shape \(3, 2\)",
        ),
        (
            torch.ones(2, 3),
            r"a boolean tensor of shape \(2, 3\), got torch.float32 of shape \(2, 3\)",
        ),
        (torch.tensor([0, 5]), r"got torch.int64 of shape \(2,\)"),
        (None, "got NoneType"),
        ([[True] * 3] * 2, "got list"),
        (torch.zeros(2, 3).bool(), "expected one coordinate at least that is kept, got none"),
    ],
)
def test_a_wrong_choice_is_refused_by_the_names_of_function_and_block(made, message):
    with pytest.raises(
        ValueError,
        match=r"round 1, mask by .*test_own.own_choice for the core block of w: .*" + message,
    ):
        keep_chosen(BLOCK, partial(own_choice, made), PUBLIC)


def test_a_function_sees_the_block_the_carriers_and_the_weights():
    """Rows of dL by the length of L's rows, dense blocks by the weight."""
    L, R = torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[0.0, 0, 0, 1]])
    where = (Coordinates(name="w", shape=(3, 4), L=L, R=R), Coordinates(name="b", shape=(2,)))
    public = Public(weights={**PUBLIC.weights, "b": torch.tensor([-1.0, 1.0])}, coordinates=where)

    def by_carriers(block: Block, public: Public) -> torch.Tensor:
        c = next(c for c in public.coordinates if c.name == block.parameter)
        source = {"L": c.L, "R": c.R, "dense": public.weights[block.parameter]}[block.part]
        return source > 0

    blocks = apply_mask(make_blocks(where), Mask(kind="own", choose=by_carriers), public)
    assert [b.keep.index.tolist() for b in blocks] == [[0], [3], [1]]
    assert Frame(coordinates=where, blocks=blocks).indices.tolist() == [0, 6, 8]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"kind": "own"}, "kind 'own' needs choose=function"),
        ({"choose": own_choice}, "no other kind takes one"),
        (
            {"kind": "own", "choose": own_choice, "sparsity": 0.5},
            "kind 'own' takes no sparsity: its function decides",
        ),
        ({"kind": "own", "choose": own_choice, "cooling": True}, "takes no cooling"),
    ],
)
def test_choices_that_do_not_fit_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        Mask(**choices)
