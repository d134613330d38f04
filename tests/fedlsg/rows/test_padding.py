"""Rows grow to a public length by their own length alone, and a mask says what was there."""

import pytest
import torch

from fedlsg.rows import Padding


def ids(length):
    return torch.arange(1, length + 1)


@pytest.mark.parametrize(
    ("length", "padded"), [(0, 8), (1, 8), (8, 8), (9, 16), (16, 16), (200, 256)]
)
def test_powers_of_two(length, padded):
    row, target = Padding(inputs=0).of_row(ids(length), torch.tensor(1))
    assert row.tolist() == [*range(1, length + 1)] + [0] * (padded - length)
    assert target.item() == 1


def test_a_public_list_of_lengths():
    padding = Padding(inputs=0, lengths=(5, 50))
    assert [len(padding.of_row(ids(length), torch.tensor(1))[0]) for length in (1, 5, 6, 50)] == [
        5,
        5,
        50,
        50,
    ]
    with pytest.raises(ValueError, match=r"longer than the largest of lengths= \(50\)"):
        padding.of_row(ids(51), torch.tensor(1))


def test_fields_masks_and_targets():
    padding = Padding(inputs={"input_ids": 3}, targets=-100, mask="attention_mask")
    inputs, tags = padding.of_row({"input_ids": ids(5), "age": torch.tensor([40.0])}, ids(5))
    assert inputs["input_ids"].tolist() == [1, 2, 3, 4, 5, 3, 3, 3]
    assert inputs["attention_mask"].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    assert inputs["age"].tolist() == [40.0]
    assert tags.tolist() == [1, 2, 3, 4, 5, -100, -100, -100]


def test_only_the_first_dimension_grows():
    frames = torch.ones(3, 2)
    padded = Padding(inputs=-1).of_row(frames, torch.tensor(1))[0]
    assert padded.shape == (8, 2)
    assert padded[3:].eq(-1).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inputs": 0, "lengths": (5, 3)}, "ascending order"),
        ({"mask": "m"}, "give pad="),
        ({"lengths": (0,)}, "ascending order"),
    ],
)
def test_settings_that_do_not_fit(given, words):
    with pytest.raises(ValueError, match=words):
        Padding(**given)


@pytest.mark.parametrize("inputs", [ids(3), {"ids": ids(3), "m": ids(3)}])
def test_a_mask_needs_inputs_by_name(inputs):
    with pytest.raises(ValueError, match="needs inputs by name without this one"):
        Padding(inputs=0, mask="m").of_row(inputs, torch.tensor(1))
