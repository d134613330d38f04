"""Flips and crops row by row, and batches on a device: the numbers are those of ``Split.batch``."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from fedlsg.simulations.workloads import Split, fetcher
from fedlsg.simulations.workloads.images.augment import (
    PAD,
    Shift,
    copies,
    crop,
    draw_round,
    drawn_copies,
    flip_crop,
)
from tests.fedlsg.support.pretend_cuda import pretended_cuda

shifts = st.sampled_from([crop, flip_crop])
seeds = st.integers(0, 2**31)
sides = st.integers(PAD + 1, 12)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_of(batch: int, height: int, width: int, seed: int, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, height, width, generator=generator(seed))


def padded_and_sliced(image: Tensor, drawn: int) -> Tensor:
    """Oracle: reflect-pad by F.pad, slice, flip."""
    height, width = image.shape[1:]
    top, left, flip = drawn % 9, drawn // 9 % 9, drawn // 81
    padded = F.pad(image, (PAD,) * 4, mode="reflect")[:, top : top + height, left : left + width]
    return padded.flip(2) if flip else padded


@given(shift=shifts, batch=st.integers(0, 5), height=sides, width=sides, seed=seeds, data=st.data())
def test_every_draw_is_pad_slice_and_flip(shift: Shift, batch, height, width, seed, data):
    images = images_of(batch, height, width, seed)
    draws = st.integers(0, shift.outcomes - 1)
    drawn = torch.tensor(
        data.draw(st.lists(draws, min_size=batch, max_size=batch)), dtype=torch.int64
    )
    before = images.clone()
    got = shift.apply(images, drawn)
    assert got.shape == images.shape
    assert torch.equal(images, before)
    for image, row, draw in zip(images, got, drawn.tolist(), strict=True):
        assert torch.equal(row, padded_and_sliced(image, draw))


@given(shift=shifts, side=sides, seed=seeds, row=st.integers(0, 5))
def test_a_row_depends_on_its_own_row_only(shift, side, seed, row):
    images = images_of(6, side, side, seed)
    other = torch.full_like(images, float("nan"))
    other[row] = images[row]
    assert torch.equal(shift(images, generator(seed))[row], shift(other, generator(seed))[row])


def test_with_public_draws_a_neighbouring_batch_changes_one_example_only():
    """Sensitivity, given the draws: one example less in the batch leaves every other example's
    copies as they were.

    Negative control: ``copies`` with a public generator draws by place in the batch, and every
    example after the one that left is augmented otherwise. That is why it needs a generator that
    nobody can repeat.
    """
    held = images_of(20, 8, 8, 0)
    labels = torch.arange(20)
    positions = torch.tensor([2, 3, 7, 8, 11, 19])
    fewer = positions[positions != 3]
    drawn = draw_round(flip_crop, len(held), 4, generator(9))

    def by_place_among_all(rows: Tensor) -> dict[int, Tensor]:
        many, targets = drawn_copies(held[rows], labels[rows], drawn[rows], flip_crop)
        return {label: many[targets == label] for label in rows.tolist()}

    def by_place_in_the_batch(rows: Tensor) -> dict[int, Tensor]:
        many, targets = copies(
            held[rows], labels[rows], multiplicity=4, augment=flip_crop, generator=generator(9)
        )
        return {label: many[targets == label] for label in rows.tolist()}

    def changed(augmented) -> list[int]:
        before, after = augmented(positions), augmented(fewer)
        return [label for label in fewer.tolist() if not torch.equal(before[label], after[label])]

    assert changed(by_place_among_all) == []
    assert changed(by_place_in_the_batch) == [7, 8, 11, 19]


ROWS = torch.tensor([4, 0, 4])
IMAGES = Split(
    inputs=np.arange(5 * 6, dtype=np.uint8).reshape(5, 1, 2, 3),
    labels=torch.arange(5) % 2,
    prepare=lambda stored: torch.from_numpy(stored).float() / 7,
)
TEXTS = Split(
    inputs=np.arange(10).reshape(5, 2),
    labels=torch.arange(5) % 2,
    prepare=lambda stored: {
        "input_ids": torch.from_numpy(stored),
        "attention_mask": torch.ones(stored.shape),
    },
    lengths=torch.tensor([2, 2, 1, 2, 1]),
)


@pytest.mark.parametrize("rows", [ROWS, torch.arange(0)])
@pytest.mark.parametrize("split", [IMAGES, TEXTS])
def test_batches_are_those_of_the_split(split, rows, monkeypatch):
    expected = split.batch(rows)
    with pretended_cuda(monkeypatch):
        inputs, targets = fetcher(split, "cuda")(rows)
        for t in (targets, *(inputs.values() if isinstance(inputs, dict) else (inputs,))):
            assert t.device.type == "cuda"
        inputs = (
            {name: t.cpu() for name, t in inputs.items()}
            if isinstance(inputs, dict)
            else inputs.cpu()
        )
        assert_close((inputs, targets.cpu()), expected, rtol=0, atol=0)
