"""The digest of a split's rows: one for equal rows, another for any other value, label, order or
number of them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.simulations.planning.earlier_runs.data_digest import data_digest
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.simulations.workloads.text_workload import Tokens


def images(count: int = 40, seed: int = 0) -> Split:
    draw = np.random.default_rng(seed)
    stored = draw.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8)
    return Split(
        inputs=stored, labels=torch.from_numpy(draw.integers(0, 3, count)), prepare=torch.from_numpy
    )


def texts(
    lengths: list[int], *, pad_id: int = 0, types: bool = True, max_length: int = 40
) -> Split:
    """Texts whose tokens are those of their number alone."""
    each = [
        np.random.default_rng(i).integers(1, 9, n).astype(np.int32) for i, n in enumerate(lengths)
    ]
    tokens = Tokens(
        ids=np.concatenate(each),
        types=np.concatenate([np.zeros(n, np.uint8) for n in lengths]) if types else None,
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        pad_id=pad_id,
        max_length=max_length,
    )
    labels = torch.arange(len(lengths)) % 2
    return Split(inputs=tokens, labels=labels, prepare=dict, lengths=tokens.lengths)


def test_any_flipped_bit_gives_another_digest() -> None:
    split = images(3)
    whole = data_digest(split)
    seen = {whole}
    for place in range(split.inputs.size):  # type: ignore[attr-defined]
        for bit in range(8):
            other = np.array(split.inputs)
            other.reshape(-1)[place] ^= 1 << bit
            seen.add(data_digest(replace(split, inputs=other)))
    for row in range(3):
        labels = split.labels.clone()
        labels[row] += 1
        seen.add(data_digest(replace(split, labels=labels)))
    assert len(seen) == 1 + 3 * 16 * 8 + 3
    assert data_digest(images(3)) == whole


@given(lengths=st.lists(st.integers(1, 12), min_size=2, max_size=30), other=st.integers(13, 40))
def test_a_text_has_one_digest_however_far_it_is_padded(lengths: list[int], other: int) -> None:
    """Neither another text that is longer, nor another padded length, changes the digest of a
    row.
    """
    rows = torch.arange(len(lengths) - 1)
    short, long = texts(lengths), texts([*lengths[:-1], other])
    assert data_digest(short, rows) == data_digest(long, rows)
    assert data_digest(short) != data_digest(long)
    assert data_digest(short) == data_digest(texts(lengths, pad_id=7))
    assert data_digest(short) == data_digest(texts(lengths, max_length=max(lengths)))


def test_what_is_stored_in_another_form_is_digested_as_the_model_sees_it() -> None:
    class Words:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, rows: Any) -> list[str]:
            return [["one", "two"][int(row)] for row in rows]

    def split(words: dict[str, int]) -> Split:
        prepare = lambda rows: torch.tensor([words[word] for word in rows])  # noqa: E731
        return Split(inputs=Words(), labels=torch.tensor([0, 1]), prepare=prepare)

    assert data_digest(split({"one": 1, "two": 2})) == data_digest(split({"one": 1, "two": 2}))
    assert data_digest(split({"one": 1, "two": 2})) != data_digest(split({"one": 1, "two": 3}))
