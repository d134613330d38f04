"""Batch functions of tensors, arrays, dicts and map-style datasets; what has no positions is refused."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, StackDataset, Subset, TensorDataset

from fedlsg.own_loop import batches_of, synthetic

X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
ROWS = torch.tensor([1, 4])
CPU = torch.device("cpu")


class Items(Dataset):
    """Items one by one, as a user writes them."""

    def __init__(self, item=lambda i: (X[i], int(Y[i]))) -> None:
        self.item = item

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i):
        return self.item(i)


@pytest.mark.parametrize("data", [
    (X, Y), (X.numpy(), Y.numpy()), TensorDataset(X, Y), Items(), StackDataset(X, Y),
    Subset(Items(lambda i: (X[i - 1], Y[i - 1])), [1, 2, 3, 4, 5, 0]), Items(lambda i: (X[i].numpy(), np.int64(i))),
])  # fmt: skip
def test_rows_of_the_positions_in_their_order(data):
    inputs, targets = batches_of(data, num_examples=6, device=CPU)(ROWS)
    assert torch.equal(inputs, X[ROWS])
    assert torch.equal(targets, Y[ROWS])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(("data", "message"), [
    (Stream(), "Stream has no length"), ([1], "has 1"), (TensorDataset(X), "a TensorDataset of inputs and targets"),
    ((X[:5], Y[:5]), "expected num_examples=6 examples, the data set has 5"), ((X, Y[:5]), "share their first"),
])  # fmt: skip
def test_a_data_set_that_does_not_fit_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        batches_of(data, num_examples=6, device=CPU)


def test_made_up_rows_have_the_shape_and_nothing_of_the_values():
    for like in (X, Y, {"x": X, "m": Y > 2}):
        first, second = synthetic(like), synthetic(like if isinstance(like, dict) else like * 0)
        parts = zip(*(p.values() if isinstance(p, dict) else [p] for p in (like, first, second)), strict=True)
        for own, made, again in parts:
            assert made.dtype == own.dtype
            assert made.shape == (7, *own.shape[1:])
            assert torch.equal(made, again)
    assert synthetic(torch.zeros(2, 5, dtype=torch.int64))[:, 0].tolist() == [1] * 7
