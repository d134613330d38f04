"""A row that the data hold more than once is refused, however it is hidden in the classes of
torch.
"""

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

from fedlsg.rows import check_distinct, origin
from fedlsg.rows.row_memory import of_object

X, Y = torch.arange(40.0).reshape(20, 2), torch.arange(20) % 3
DATA = TensorDataset(X, Y)


class Listed(Dataset):
    """Items one by one."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, place):
        return X[place], int(Y[place])


ITEMS = Listed()
OBJECTS = [(torch.ones(2), 0), (torch.ones(2), 0)]
REPEATED = {
    "subset": (Subset(ITEMS, [0, 0, 1]), "1 row more than once (one of them 2 times)"),
    "oversampled": (Subset(DATA, [0] * 10 + list(range(20))), "(one of them 11 times)"),
    "nested": (Subset(Subset(ITEMS, [3, 4, 3, 5]), [0, 2]), "1 row more than once"),
    "twice": (ConcatDataset([ITEMS, ITEMS]), "20 rows more than once (one of them 2 times)"),
    "rare class": (ConcatDataset([ITEMS, Subset(ITEMS, [5, 6])]), "2 rows more than once"),
    "of a concatenation": (
        Subset(ConcatDataset([ITEMS, DATA]), np.array([1, 21, 21])),
        "1 row more than once",
    ),
    "two sets of one tensor": (
        ConcatDataset([TensorDataset(X, Y), TensorDataset(X[:5], Y[:5])]),
        "5 rows",
    ),
    "one object in a list": ([*OBJECTS, OBJECTS[0]], "1 row more than once"),
    "negative": (Subset(DATA, [-1, 19]), "1 row more than once"),
    "stack": (StackDataset(Subset(ITEMS, [0, 0]), Subset(DATA, [1, 1])), "1 row more than once"),
    "stack by name": (
        StackDataset(x=X[:1].expand(9, 2), label=[*range(9)]),
        "(one of them 9 times)",
    ),
}
DISTINCT = {
    "a list of equal words": ["a", "b", "a", 1, 1, None, None],
    "a list of equal rows": OBJECTS,
    "items": ITEMS,
    "tensors": DATA,
    "parts": ConcatDataset([Subset(ITEMS, range(10)), Subset(ITEMS, range(10, 20))]),
    "split": random_split(DATA, [12, 8])[0],
    "two sets": ConcatDataset([ITEMS, Listed()]),
    "one label for all": TensorDataset(X, Y[:1].expand(20)),
    "stack": StackDataset(Subset(DATA, [1, 2]), Subset(ITEMS, [0, 0])),
    "stack with a small part for all": StackDataset(
        x=Subset(DATA, [1, 2]), site=Subset(TensorDataset(Y), [0, 0]), label=[0, 0]
    ),
    "neighbours": ConcatDataset([TensorDataset(X[:10], Y[:10]), TensorDataset(X[10:], Y[10:])]),
}


@pytest.mark.parametrize("case", REPEATED)
def test_a_row_that_comes_twice_is_refused(case):
    data, words = REPEATED[case]
    with pytest.raises(ValueError, match="more than once") as refusal:
        check_distinct(data, "train")
    assert words in str(refusal.value)
    assert "weight" in str(refusal.value)


@pytest.mark.parametrize("case", DISTINCT)
def test_distinct_rows_pass(case):
    check_distinct(DISTINCT[case], "train")


def test_places_alone_do_not_show_it(monkeypatch):
    """Negative control: without a look through Subset and ConcatDataset all places differ."""
    monkeypatch.setattr(origin, "parts_of", of_object)
    for data, _ in REPEATED.values():
        check_distinct(data, "train")
