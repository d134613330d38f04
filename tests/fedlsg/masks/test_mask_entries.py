"""Masks of single weights (magnitude, drop, pruned) against naive loops, and in a step."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.carriers import Lora, LowRank, RandomCarriers
from fedlsg.frame import Frame
from fedlsg.frame.public import Public, RoundTime
from fedlsg.masks.freezing import smallest
from fedlsg.masks.mask import Mask, apply_mask
from fedlsg.masks.pruning import Prune
from fedlsg.method import Method
from fedlsg.privacy.mechanism import Mechanism
from tests.fedlsg.support.mask_oracle import kept_by, naive, weights
from tests.fedlsg.support.step_oracle import DENSE, EMPTY, NOISY, problem

seeds = st.integers(0, 2**32)
rates = st.floats(0, 0.99)


@given(values=st.lists(st.integers(0, 4), min_size=1, max_size=20), data=st.data())
def test_the_smallest_values_equal_a_sort(values, data):
    count = data.draw(st.integers(1, len(values)))
    chosen = (
        smallest(torch.tensor(values, dtype=torch.float32), count).nonzero().squeeze(1).tolist()
    )
    assert chosen == sorted(sorted(range(len(values)), key=lambda i: (values[i], i))[:count])


@given(sparsity=rates, seed=seeds, refresh=st.booleans())
def test_magnitude_equals_a_sort_of_every_weight_tensor(sparsity, seed, refresh):
    now, start = weights(seed), weights(seed + 1)
    kept = kept_by(Mask(kind="magnitude", sparsity=sparsity, refresh=refresh), now, initial=start)
    source = now if refresh else start
    for name, W in source.items():
        everything = list(range(W.numel()))
        small = W.abs().flatten().tolist()
        assert kept[name] == (naive(small, everything, sparsity) if W.ndim >= 2 else everything), (
            name
        )


def test_the_mask_of_the_start_does_not_move_and_the_refreshed_one_does():
    start = weights(0)
    fixed, fresh = (
        Mask(kind="magnitude", sparsity=0.5, refresh=refresh) for refresh in (False, True)
    )
    frozen = [kept_by(fixed, weights(seed), initial=start) for seed in range(4)]
    assert all(kept == frozen[0] for kept in frozen)
    moved = [kept_by(fresh, weights(seed)) for seed in range(4)]
    assert all(kept != moved[0] for kept in moved[1:])


@pytest.mark.parametrize("drop", ["random", "magnitude"])
def test_dropping_never_takes_a_whole_tensor(drop):
    now = {"w": torch.ones(1, 3), "v": torch.ones(1, 1)}
    kept = kept_by(Mask(kind="drop", drop=drop, sparsity=0.99), now)
    assert [len(kept["w"]), len(kept["v"])] == [1, 1]


def noise_lies_where_kept(redrawn: bool) -> bool:
    """Of the weight that the server rebuilds; ``redrawn`` plants another round's mask between
    gradient and noise.
    """
    mask = Mask(kind="drop", drop="random", sparsity=0.5)
    p = problem(mask, DENSE)
    values = p.step(NOISY, EMPTY)
    now = dict(p.model.named_parameters())
    time = RoundTime(round=2 if redrawn else 1, rounds=3)
    lifted = Frame(
        coordinates=p.frame.coordinates,
        blocks=apply_mask(p.frame.blocks, mask, Public(weights=now, time=time)),
    )
    full = torch.cat([piece.flatten() for piece in lifted.unflatten(values)])
    return (
        full.nonzero().squeeze(1).tolist() == p.frame.indices.tolist()
        and lifted.digest == p.frame.digest
    )


def test_a_mask_redrawn_between_gradient_and_noise_is_caught():
    assert noise_lies_where_kept(redrawn=False)
    assert not noise_lies_where_kept(redrawn=True)


def noise_is_on_kept_entries_only(leak: bool) -> bool:
    """The planted leak noises the dense gradient after the mask: frozen weights then move."""
    p = problem(Mask(kind="magnitude", sparsity=0.5), DENSE)
    gradients = p.frame.gradients(p.step(NOISY, EMPTY))
    if leak:
        gradients = {
            n: g + torch.randn(g.shape, generator=torch.Generator().manual_seed(0))
            for n, g in gradients.items()
        }
    flat = torch.cat([gradients[b.parameter].flatten() for b in p.frame.blocks])
    frozen = torch.ones(len(flat), dtype=torch.bool).index_fill(0, p.frame.indices, False)
    # noise may be 0
    return bool((flat[frozen] == 0).all() and (flat[~frozen] != 0).double().mean() > 0.9)


def test_noise_off_the_kept_entries_is_caught():
    assert noise_is_on_kept_entries_only(leak=False)
    assert not noise_is_on_kept_entries_only(leak=True)


def test_a_mask_sees_public_values_only():
    """By construction: all that it may read is here, and none of it is a gradient or an example."""
    names = {f.name for f in fields(Public)}
    assert names == {
        "weights",
        "initial",
        "carried",
        "coordinates",
        "pairs",
        "energies",
        "time",
        "updates",
        "seed",
        "pruned",
        "make_model",
    }
    assert set(apply_mask.__annotations__) == {"blocks", "mask", "public", "return"}


@pytest.mark.parametrize(
    ("choices", "part"),
    [
        (
            {"mask": Mask(kind="magnitude", sparsity=0.5), "carrier": RandomCarriers(rank=2)},
            "dense gradients",
        ),
        ({"mask": Mask(kind="drop", drop="random"), "carrier": Lora(rank=2)}, "dense gradients"),
        (
            {"prune": Prune(kind="random", rate=0.5), "carrier": RandomCarriers(rank=2)},
            "dense gradients",
        ),
        (
            {"prune": Prune(kind="random", rate=0.5), "mask": Mask(kind="uniform")},
            "does not combine",
        ),
        (
            {
                "mask": Mask(kind="uniform", ranking="gradients"),
                "mechanism": Mechanism(kind="clip-only"),
            },
            "and noise",
        ),
        (
            {"mask": Mask(kind="uniform", ranking="gradients"), "carrier": LowRank(rank=2)},
            "dense gradients",
        ),
    ],
)
def test_choices_that_do_not_fit_are_refused(choices, part):
    with pytest.raises(ValueError, match=part):
        Method(name="test", **choices)
