"""Two rows are one where their inputs are the same memory, and no others are: views of all kinds,
second maps of a file, objects, and parts of several sizes.
"""

from collections import UserList, deque, namedtuple
from datetime import date
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from fedlsg.rows import row_memory
from fedlsg.rows.origin import check_distinct, parts_of_inputs
from fedlsg.rows.row_memory import earlier_rows, joined

X = torch.arange(240.0).reshape(40, 6)
A = X.numpy()
IMAGES = torch.arange(96.0).reshape(3, 2, 4, 4)
WINDOWS = X.flatten().unfold(0, 6, 1)
LABELS = [place % 3 for place in range(40)]
Boxed = namedtuple("Boxed", "x")


class Graph:
    """An object with its numbers in an attribute."""

    def __init__(self, x):
        self.x = x


def repeats(one: Any, other: Any) -> int:
    """Rows of the inputs ``other`` that are rows of ``one``, or earlier ones of ``other``."""
    parts = [parts_of_inputs(one), parts_of_inputs(other)]
    sizes = [len(next(iter(part.values())).start) for part in parts]
    earlier = earlier_rows(joined(parts, sizes))
    assert (earlier < np.arange(sum(sizes))).all()
    return int((earlier[sizes[0] :] >= 0).sum())


def things(values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


ONE = {
    "every second": (X, X[::2], 20),
    "every third of every second": (X[::2], X[::3], 7),
    "an array": (A, A[::2], 20),
    "backwards": (A[10:], A[::-1][:20], 20),
    "each row backwards": (A, A[:, ::-1], 40),
    "a tensor of an array": (A, torch.from_numpy(A), 40),
    "another shape": (X, X.view(40, 2, 3), 40),
    "another type": (X, X.view(torch.int32), 40),
    "channels last": (IMAGES, IMAGES.permute(0, 2, 3, 1), 3),
    "turned images": (IMAGES, IMAGES.transpose(2, 3), 3),
    "detached": (X, X.detach(), 40),
    "one row many times": (X, X[:1].expand(9, 6), 9),
    "windows again": (WINDOWS, X.flatten().unfold(0, 6, 3), 79),
    "lists of views": (list(X), list(X[::2]), 20),
    "rows of a list": (X, list(X), 40),
    "an array of things": (list(X), things(list(X)), 40),
    "objects": ([Graph(x) for x in X], [Graph(x) for x in X], 40),
    "named tuples": ([Boxed(x) for x in X], [Boxed(x) for x in X], 40),
    "dicts": ([{"x": x} for x in X], [{"x": x} for x in X], 40),
    "one dict of words": ((words := [{"text": "a"}]), words * 9, 9),
    "slices of pyarrow": (
        (column := pa.array(range(40))),
        pa.chunked_array([column[:5], column[20:]]),
        25,
    ),
    "a slice of a Series": (
        (series := pd.Series(A[:, 0])),
        series.iloc[::2].reset_index(drop=True),
        20,
    ),
    "lists of tensors": ([[x, x] for x in X], [[x, x] for x in X], 40),
    "a dict with another mask": (
        {"x": X, "mask": X[:, :2]},
        {"x": X, "mask": X[:, :2].clone()},
        40,
    ),
    "half of the bytes, first": ({"x": X, "y": X.clone()}, {"x": X, "y": X.clone()}, 40),
    "a dict in another order": (
        {"u": X[:, :3], "v": X[:, 3:]},
        [{"v": x[3:], "u": x[:3]} for x in X],
        40,
    ),
    "a dict of one part": ({"x": X}, X, 40),
    "one sparse tensor": ((sparse := X.to_sparse()), sparse, 40),
    "one empty tensor": ((empty := torch.zeros(40, 0)), empty, 40),
}


@pytest.mark.parametrize("case", ONE)
def test_rows_in_one_memory_are_one(case):
    one, other, count = ONE[case]
    assert repeats(one, other) == count


SEVERAL = {
    "copies": (X, X.clone()),
    "equal arrays": (A, A.copy()),
    "windows that overlap": (WINDOWS, X.flatten()[:0].reshape(0, 6)),
    "halves": (X[:20], X[20:]),
    "columns": (X.T[:3], X.T[3:]),
    "rows and columns": (X, X.T),
    "real and imaginary parts": (
        torch.view_as_complex(X.view(40, 3, 2)).real,
        X.view(40, 3, 2)[:, :, 1],
    ),
    "equal words": (["a"] * 9, ["a"] * 9),
    "equal numbers": ([1, 2, None] * 3, [1, 2, None] * 3),
    "equal dicts": ([{"text": "a"} for _ in X], [{"text": "a"} for _ in X]),
    "equal tuples": ([("a", 1)] * 9, [("a", 1)] * 9),
    "one date": ([date(2020, 1, 1)] * 9, [date(2020, 1, 1)] * 9),
    "words of an array": (things(["a"] * 9), things(["a"] * 9)),
    "objects of their own": ([Graph(x) for x in X], [Graph(x.clone()) for x in X]),
    "lists of numbers": ([[1, 2] for _ in X], [[1, 2] for _ in X]),
    "a category for all": ({"x": X, "c": X[:1, :2].expand(40, 2)}, {"x": X.clone(), "c": X[:, :2]}),
    "a mask for all, as long": (
        {"x": X, "mask": (mask := torch.ones(6).expand(40, 6))},
        {"x": X + 1, "mask": mask},
    ),
    "one of three categories": ([{"x": x, "c": X[row % 3, :2]} for row, x in enumerate(X)], [[]]),
    "empty": (torch.zeros(40, 0), torch.zeros(40, 0)),
    "sparse": (X.to_sparse(), X.to_sparse()),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_rows_in_several_memories_are_several(case):
    one, other = SEVERAL[case]
    assert repeats(one, other) == 0
    assert (earlier_rows(parts_of_inputs(one)) < 0).all()


def hub(texts):
    """Rows of two columns of texts: one grows with the row, and the other shrinks."""
    columns = {"a": [text * (row + 1) for row, text in enumerate(texts)]}
    columns["b"] = [text * (40 - row) for row, text in enumerate(texts)]
    columns |= {f"c{number}": texts for number in range(40)} | {"label": LABELS}
    return datasets.Dataset.from_dict(columns)


@pytest.mark.parametrize("count", [5, 20, 35])
def test_a_slice_of_a_table_is_looked_at_in_the_same_columns(count):
    """Whichever of them are the longest in it."""
    texts = hub(["xyz"] * 40)
    turned = texts.select(range(count)).select_columns(texts.column_names[::-1])
    for again in (texts.select(range(count)), texts.select([*range(count)][::2]), turned):
        with pytest.raises(ValueError, match=f"{len(again)} rows more than once"):
            check_distinct(ConcatDataset([texts, again]), "rows")
    check_distinct(ConcatDataset([texts, hub(["xyz"] * 40)]), "rows")


@pytest.mark.parametrize("has_maps", [True, False])
def test_two_maps_of_one_file_have_the_same_rows(has_maps, tmp_path, monkeypatch):
    if has_maps and not row_memory.HAS_MAPS:
        pytest.skip("the system does not say what is mapped")
    monkeypatch.setattr(row_memory, "HAS_MAPS", has_maps)
    for name in ("one", "two"):
        np.save(tmp_path / name, A)
    (tmp_path / "linked.npy").hardlink_to(tmp_path / "one.npy")

    def mapped(name):
        return np.load(tmp_path / f"{name}.npy", mmap_mode="r")

    assert repeats(mapped("one"), mapped("one")[::2]) == 20
    assert repeats(mapped("one")[5:][::-1], mapped("one")[3:10]) == 5
    assert repeats(np.asarray(mapped("one"))[20:], mapped("linked")) == 20
    assert repeats(mapped("one"), mapped("two")) == 0
    assert repeats(mapped("one")[:20], mapped("one")[20:]) == 0
    assert repeats(mapped("one"), np.array(mapped("one"))) == 0


@pytest.mark.skipif(not row_memory.HAS_MAPS, reason="the system does not say what is mapped")
def test_so_have_tensors_that_torch_maps(tmp_path):
    torch.save(X, tmp_path / "x.pt")

    def mapped():
        return torch.load(tmp_path / "x.pt", mmap=True)

    assert repeats(mapped(), mapped()) == 40
    X.clone().share_memory_()
    assert repeats(X.clone().share_memory_(), X.clone().share_memory_()) == 0


def test_without_the_places_in_files_two_maps_differ(tmp_path, monkeypatch):
    """Negative control."""
    np.save(tmp_path / "rows", A)
    none = np.zeros(1, dtype=np.uint64)
    monkeypatch.setattr(row_memory, "_mapped_files", lambda: (none, none, none))
    assert repeats(*(np.load(tmp_path / "rows.npy", mmap_mode="r") for _ in range(2))) == 0


def test_a_row_is_compared_with_one_row():
    """A pair of things that two others have is not one of them."""
    u, v = X[:3], X[3:6]
    pairs = [{"u": u[0], "v": v[0], "w": X[7]}, {"u": u[1], "v": v[1], "w": X[8]}]
    check_distinct([(row, 0) for row in pairs], "rows")
    check_distinct([(row, 0) for row in [*pairs, {"u": u[0], "v": v[1], "w": X[9]}]], "rows")
    with pytest.raises(ValueError, match="1 row more than once"):
        check_distinct([(row, 0) for row in [*pairs, {"u": u[0], "v": v[0], "w": X[9]}]], "rows")


TABLES = X[:9].view(3, 3, 6)
"""Three tables of three things, which rows share."""


def of_tables(*rows, own=0):
    """Rows that have one thing of each table, and ``own`` numbers of their own."""
    return [
        (
            {name: table[place] for name, table, place in zip("pqr", TABLES, places, strict=True)}
            | ({"own": torch.zeros(own)} if own else {}),
            0,
        )
        for places in rows
    ]


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("again", [(0, 0, 0), (0, 0, 2), (0, 2, 0)])
def test_a_row_is_not_hidden_behind_others_that_share_each_of_its_parts(own, again):
    others = (0, 1, 1), (1, 0, 2), (2, 2, 0)
    first = of_tables(*others, (0, 0, 0), own=own)
    check_distinct(first, "rows")
    rows = [*first, *of_tables(*[again] * 19, own=own)]
    with pytest.raises(ValueError, match=r"more than once \(one of them (19|20) times"):
        check_distinct(rows, "rows")


def test_parts_that_change_their_names_make_no_row():
    check_distinct([({"u": X[0], "v": X[1]}, 0), ({"u": X[2], "v": X[3]}, 0)], "rows")
    with pytest.raises(ValueError, match="1 row more than once"):
        check_distinct([({"u": X[0], "v": X[1]}, 0), ({"u": X[1], "v": X[0]}, 0)], "rows")


@pytest.mark.parametrize("names", [("ids", "mask", "types"), ("types", "mask", "ids")])
def test_what_all_rows_share_does_not_count(names):
    """A mask and types of tokens; without tokens of their own rows are one."""
    common = {"mask": torch.ones(6), "types": torch.zeros(6)}
    expanded = {name: part.expand(40, 6) for name, part in common.items()}
    for rows in (
        ({name: (expanded | {"ids": X})[name] for name in names}, LABELS),
        [({name: (common | {"ids": x})[name] for name in names}, 0) for x in X],
    ):
        check_distinct(rows, "rows")
    for inputs in (expanded, expanded | {"ids": X[:1].expand(40, 6)}):
        with pytest.raises(ValueError, match="one of them 40 times"):
            check_distinct((inputs, LABELS), "rows")
    twice = expanded | {"ids": torch.cat([X, X])[torch.arange(40) % 20]}
    check_distinct((twice, LABELS), "rows")
    views = [({**common, "ids": X[row % 20]}, 0) for row in range(40)]
    with pytest.raises(ValueError, match="20 rows more than once"):
        check_distinct(views, "rows")


def test_a_refusal_names_the_part_that_two_rows_share_and_its_copy_passes():
    mask = torch.ones(6)
    other = {"q": torch.ones(6), "image": torch.ones(6), "mask": mask}, 0
    rows = [({"q": x, "image": X[0], "mask": mask}, 0) for x in X[1:]]
    copies = [({**row, "image": row["image"].clone()}, label) for row, label in rows]
    with pytest.raises(
        ValueError, match=r"share 'image' in memory need a copy of it each \(.clone"
    ):
        check_distinct([*rows, other], "rows")
    check_distinct([*copies, other], "rows")
    with pytest.raises(ValueError, match=r"need a copy each \(inputs.clone"):
        check_distinct(rows[:1] * 2, "rows")


def test_a_part_of_half_of_the_bytes_counts_under_every_name():
    for names in ("ab", "ba"):
        rows = [(dict(zip(names, (x, x.clone()), strict=True)), 0) for x in [*X[:5], *X[:5]]]
        with pytest.raises(ValueError, match="5 rows more than once"):
            check_distinct(rows, "rows")
        check_distinct(rows[:5], "rows")


def test_choices_of_the_hub_are_looked_through():
    hub = datasets.Dataset.from_dict({"x": A.tolist(), "label": LABELS})
    check_distinct(hub, "rows")
    check_distinct(hub.select([3, 1, 2]), "rows")
    check_distinct(ConcatDataset([hub.select(range(20)), hub.select(range(20, 40))]), "rows")
    for again in (hub.select([0] * 9 + [1]), ConcatDataset([hub, hub.select([3, 5])])):
        with pytest.raises(ValueError, match="more than once"):
            check_distinct(again, "rows")


def of_numbers(number):
    return {"age": 3.0, "height": 2.0, "label": number % 3}


def test_a_dict_of_numbers_is_known_by_itself():
    """Its inputs, without the target, are a dict of the moment: an id of nothing."""
    check_distinct([of_numbers(row) for row in range(40)], "rows")
    check_distinct(ConcatDataset([[of_numbers(row) for row in range(40)] for _ in "ab"]), "rows")
    row = of_numbers(0)
    with pytest.raises(ValueError, match="one of them 40 times"):
        check_distinct([row] * 40, "rows")
    with pytest.raises(ValueError, match="one of them 2 times"):
        check_distinct(ConcatDataset([[row], [of_numbers(1), row]]), "rows")
    with pytest.raises(ValueError, match="one of them 9 times"):
        check_distinct([{**row, "x": X[0]}] * 9, "rows")
    inputs = {"age": 3.0, "height": 2.0}
    with pytest.raises(ValueError, match="one of them 9 times"):
        check_distinct([(inputs, label) for label in range(9)], "rows")


def tokens(ids: Any, mask: Any = None) -> tuple[dict[str, Any], int]:
    """A text as people make it of stored tokens; the mask and the types are new."""
    made = {"ids": ids, "mask": torch.ones(6) if mask is None else mask, "types": torch.zeros(6)}
    return made, 0


def test_a_row_whose_larger_part_is_made_anew_is_known_by_its_values():
    check_distinct([tokens(x) for x in X], "rows")
    twice: Any = [tokens(X[0]), tokens(X[0]), tokens(X[1])]
    for again in (twice, Subset(twice, [2, 1, 0]), ConcatDataset([twice[:1], twice[1:]])):
        with pytest.raises(ValueError, match="more than once"):
            check_distinct(again, "rows")
    with pytest.raises(ValueError, match="1 row more than once"):
        check_distinct([*map(tokens, X), tokens(X[0])], "rows")


def test_equal_texts_that_share_the_mask_of_their_length_are_several():
    masks = [torch.ones(6), torch.ones(6)]
    rows = [tokens(torch.ones(6) * (row % 5), masks[row % 2]) for row in range(40)]
    check_distinct(rows, "rows")


HOLDERS = {
    "deque": deque,
    "UserList": UserList,
    "dict": lambda rows: dict(enumerate(rows)),
    "Subset of a tuple": lambda rows: Subset(tuple(rows), range(len(rows))),  # type: ignore[arg-type]
    "tuples": lambda rows: ConcatDataset([tuple(rows[:1]), tuple(rows[1:])]),  # type: ignore[list-item]
    "StackDataset": lambda rows: StackDataset(tuple(x for x, _ in rows), LABELS[: len(rows)]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_rows_in_every_container_are_looked_at(holder):
    check_distinct(HOLDERS[holder]([(x, 0) for x in X]), "rows")
    with pytest.raises(ValueError, match="one of them 9 times"):
        check_distinct(HOLDERS[holder]([(X[0], 0) for _ in range(9)]), "rows")


def test_labels_make_no_row():
    label = torch.tensor(1)
    check_distinct([(x, label) for x in X], "rows")
    check_distinct([{"x": x, "label": label} for x in X], "rows")
    for one in ((X[0], 0), {"x": X[0], "label": 0}):
        again = {**one, "label": 1} if isinstance(one, dict) else (one[0], 1)
        with pytest.raises(ValueError, match="1 row more than once"):
            check_distinct([one, again], "rows")


def test_an_example_that_is_a_list_twice_is_seen_by_its_object():
    text = ("a text", 1)
    with pytest.raises(ValueError, match="one of them 9 times"):
        check_distinct([text] * 9, "rows")
    check_distinct([("a text", place % 2) for place in range(9)], "rows")


def test_parts_of_several_lengths_are_for_their_reader_to_refuse():
    x = torch.randn(6, 2)
    assert not len(earlier_rows(parts_of_inputs({"a": x, "b": x[1:]})))
