"""Batches of rows that are made one at a time: groups by shape, draws of each row, and what is
refused.
"""

import numpy as np
import pytest
import torch

from fedlsg.randomness import reproducible_stream
from fedlsg.rows import OneByOne, Padding, one_by_one, padding
from fedlsg.rows.one_by_one import same_row

CPU = torch.device("cpu")
TEXTS = [torch.arange(1, 3 + place % 3) for place in range(12)]


def batch(make, **more) -> OneByOne:
    return OneByOne(make, make, device=CPU, **more)


def noisy(place):
    return torch.tensor([float(place)]) + torch.rand(1), place % 3


def test_rows_of_one_shape_share_a_group_and_no_pad_depends_on_the_company():
    texts = batch(lambda place: (TEXTS[place], place))
    few, all_of_them = texts.groups(torch.tensor([1, 4, 5])), texts.groups(torch.arange(12))
    assert [group.tolist() for group in few] == [[1, 4], [5]]
    assert [group.tolist() for group in all_of_them] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    inputs, targets = texts(few[0])
    assert inputs.tolist() == [[1, 2, 3]] * 2
    assert targets.tolist() == [1, 4]


@pytest.mark.parametrize("of", [lambda t: t, lambda t: t.numpy(), lambda t: {"x": t[:]}])
def test_one_buffer_may_serve_all_rows(of, monkeypatch):
    buffer = torch.zeros(1)

    def make(place):
        return of(buffer.fill_(place)), place

    def read():
        inputs, _ = batch(make)(torch.arange(3))
        return (inputs["x"] if isinstance(inputs, dict) else inputs).flatten().tolist()

    assert read() == [0, 1, 2]
    monkeypatch.setattr(one_by_one, "in_own_memory", lambda part: part)
    assert read() == [2, 2, 2], "negative control: without a copy all rows are the last one"


@pytest.mark.parametrize("length", [5, 8])
def test_one_buffer_may_serve_all_padded_rows(length, monkeypatch):
    """Also one that has the padded length already."""
    buffer, labels = torch.zeros(length), torch.zeros(2)

    def read():
        rows = batch(
            lambda place: ({"x": buffer.fill_(place)}, labels.fill_(place)),
            padding=Padding(inputs=0),
        )
        inputs, targets = rows(torch.arange(3))
        return inputs["x"][:, 0].tolist(), targets[:, 0].tolist()

    assert read() == ([0, 1, 2], [0, 1, 2])
    monkeypatch.setattr(padding, "in_own_memory", lambda part: part)
    monkeypatch.setattr(torch, "constant_pad_nd", lambda value, *given: value)
    assert read() == ([2] * 3, [2] * 3), "negative control"


def test_a_position_may_come_twice():
    made, _ = batch(lambda place: (torch.tensor([place]), 0))(torch.tensor([1, 2, 1]))
    assert made.flatten().tolist() == [1, 2, 1]


class Centred(torch.Tensor):
    """Sees the batch in each function that it is given to."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        made = super().__torch_function__(function, types, args, kwargs or {})
        return made - made.mean(0) if function is torch.exp else made


def test_rows_are_plain_tensors():
    def make(place):
        return torch.tensor([float(place)]).as_subclass(Centred), place

    for way in (None, Padding(inputs=0)):
        inputs, _ = batch(make, padding=way)(torch.arange(3))
        assert type(inputs) is torch.Tensor
    assert type(torch.stack([make(place)[0] for place in range(3)])) is Centred, "negative control"


def test_groups_of_the_users_own_are_cut_by_shape():
    halves = batch(lambda place: (TEXTS[place], place)).within(lambda positions: positions.split(6))
    assert [group.tolist() for group in halves(torch.arange(12))] == [
        [0, 3],
        [1, 4],
        [2, 5],
        [6, 9],
        [7, 10],
        [8, 11],
    ]


def test_padded_rows_need_fewer_groups():
    texts = batch(lambda place: (TEXTS[place], place), padding=Padding(inputs=0))
    assert len(texts.groups(torch.arange(12))) == 1
    assert texts(torch.tensor([0, 2]))[0].tolist() == [[1, 2] + [0] * 6, [1, 2, 3, 4] + [0] * 4]


@pytest.mark.parametrize("kept", [0, one_by_one.KEPT_BYTES])
def test_a_row_has_one_draw_in_a_step_and_another_in_the_next(kept, monkeypatch):
    """Also where it is made a second time, because not all rows are kept."""
    monkeypatch.setattr(one_by_one, "KEPT_BYTES", kept)
    rows, positions = batch(noisy), torch.arange(6)
    seen = []
    for _ in range(2):
        rows.draw_from(None)
        rows.groups(positions)
        first = rows(positions)[0]
        assert torch.equal(rows(positions)[0], first)
        assert len(first.frac().unique()) == 6
        seen.append(first)
    assert not torch.equal(*seen)


def test_the_draws_of_a_row_do_not_depend_on_the_others_of_its_batch():
    """One more row moves the number of its draw: another one, as independent and as secret as
    before.
    """
    alone, company = (batch(noisy) for _ in range(2))
    assert same_row(
        alone.rows(torch.tensor([5]), bytes(16))[0], company.rows(torch.arange(6), bytes(16))[5]
    )


def test_a_stream_repeats_all_draws():
    seen = []
    for _ in range(2):
        rows = batch(noisy)
        rows.draw_from(reproducible_stream(3, "rows"))
        seen.append(rows(torch.arange(4))[0])
    assert torch.equal(*seen)


def test_types_of_rows():
    made = batch(
        lambda place: ({"a": np.arange(2.0), "b": torch.ones(2, dtype=torch.float64)}, 0.5)
    )
    inputs, targets = made(torch.arange(3))
    assert [inputs["a"].dtype, inputs["b"].dtype, targets.dtype] == [
        torch.float32,
        torch.float64,
        torch.float32,
    ]
    assert len(made(torch.arange(0))[1]) == 0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (5, r"expected items \(inputs, targets\)"),
        (("text", 1), "the inputs of .* are of type str"),
        ((torch.ones(2), [1, 2]), "the targets of .* are of type list"),
        (({"a": "x"}, 1), "the inputs"),
    ],
)
def test_rows_that_are_none(row, words):
    with pytest.raises(ValueError, match=words):
        batch(lambda place: row)(torch.arange(2))


def test_rows_of_several_shapes_in_one_group():
    with pytest.raises(ValueError, match="cannot be put together to one batch"):
        batch(lambda place: (TEXTS[place], place))(torch.arange(3))
