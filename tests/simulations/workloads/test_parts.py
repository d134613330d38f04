"""A partition kept as two arrays is the lists of rows that it stands for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simulations.workloads.partition import Parts, digest


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=50))
def test_parts_are_the_rows_of_each_owner(owner):
    parts = Parts(np.array(owner), 6)
    listed = [torch.tensor([row for row, own in enumerate(owner) if own == client]) for client in range(6)]
    assert len(parts) == 6
    assert list(parts.sizes) == list(map(len, listed))
    assert all(one.tolist() == other.tolist() for one, other in zip(parts, listed, strict=True))
    assert all(part.dtype == torch.int64 for part in parts)
    assert [part.tolist() for part in parts[1:-1]] == [part.tolist() for part in listed[1:-1]]
    assert parts[-1].tolist() == listed[-1].tolist()
    assert digest(parts) == digest([part.long() for part in listed]), "a checkpoint of an older version has this digest"


def test_other_parts_have_another_digest():
    """Negative control: a row that moves to another client, and one that moves over the border of two."""
    one, other, third = (Parts(np.array(owner), 3) for owner in ([0, 0, 1, 2], [0, 1, 0, 2], [0, 1, 1, 2]))
    assert len({digest(one), digest(other), digest(third), digest(one, b"declared")}) == 4


def test_an_owner_that_is_no_client_is_refused():
    with pytest.raises(ValueError, match=r"expected owners -1\.\.1 of rows, got 2"):
        Parts(np.array([0, 1, 2]), 2)
    with pytest.raises(IndexError):
        Parts(np.array([0, 1]), 2)[2]
