"""Tokenised texts as a few flat arrays, padded a batch at a time to a public length.

A split of N texts with S tokens in all is stored as ``ids`` (S,) int32, ``types`` (S,) uint8 and ``offsets`` (N + 1,)
int64: text i is ``ids[offsets[i]:offsets[i + 1]]``, special tokens included. Padding is not stored.

Padded lengths are PADDED_LENGTHS below ``max_length``, and ``max_length``. The padded length changes the rounding of a
text's gradient, in bfloat16 by up to 1 % (docs/results/sensitivity.md). If the longest text of a batch set the
length, one text more or less would change the gradients of all others. So only texts of one padded length train
together. In a batch all texts are padded, or (those of ``max_length`` tokens) none is: encoders compute differently if
a whole batch has no padding.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from simulations.workloads.base.workload import Progress, Split
from simulations.workloads.rows.texts import Texts

ROWS_AT_ONCE = 10_000
PADDED_LENGTHS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Each at most 1.5 times the one before: on SST-2 16 % more tokens than with sorted batches of 32."""
FORMAT = "tokens int32, types uint8, version 1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """Tokenised texts, possibly memory-mapped; ``tokens[rows]`` are the padded tensors of a batch.

    types: the text of a pair that a token belongs to (0 or 1); None for a model that does not read it.
    max_length: most tokens of a text, a public setting.
    """

    ids: np.ndarray
    types: np.ndarray | None
    offsets: np.ndarray
    pad_id: int
    max_length: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64[Tensor, " n"]:
        """Tokens of every text."""
        return torch.from_numpy(np.diff(self.offsets))

    @property
    def widths(self) -> np.ndarray:
        """Padded length of every group of texts, ascending; the last one's texts have ``max_length`` tokens."""
        shorter = [length for length in PADDED_LENGTHS if length < self.max_length]
        return np.array([*shorter, self.max_length, self.max_length])

    def group(self, lengths: np.ndarray) -> np.ndarray:
        """The group of texts with these lengths: the first that pads them, else the last."""
        found: np.ndarray = np.searchsorted(self.widths[:-1], lengths, side="right")
        return found

    @property
    def groups(self) -> Int64[Tensor, " n"]:
        """The group of every text: those of one group are padded to one length."""
        return torch.from_numpy(self.group(np.diff(self.offsets)).astype(np.int64))

    def __getitem__(self, rows: np.ndarray, /) -> dict[str, Tensor]:
        """``input_ids``, ``attention_mask`` and, if the model reads it, ``token_type_ids``: (B, T) int64.

        T is the padded length of the longest of the rows, and thus of each of them where they are of one group. The
        padding is on the right: ``pad_id``, mask 0, type 0.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        place = np.arange(int(self.widths[self.group(lengths).max(initial=0)]))
        inside = place < lengths[:, None]
        where = np.where(inside, starts[:, None] + place, 0)
        padded = {"input_ids": np.where(inside, self.ids[where], self.pad_id), "attention_mask": inside}
        if self.types is not None:
            padded["token_type_ids"] = np.where(inside, self.types[where], 0)
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in padded.items()}


def tokenise(split: str, texts: Texts, tokenizer: Any, *, max_length: int, progress: Progress) -> dict[str, np.ndarray]:
    """The arrays of one split, each under the name ``{split}_...``, with its labels and class count.

    A text or pair of more than ``max_length`` tokens is cut, the longer of a pair first; ``progress`` reports how many.
    """
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    lengths: list[int] = []
    for start in range(0, len(texts), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        second = None if texts.second is None else texts.second[part]
        encoded = tokenizer(
            texts.first[part],
            second,
            truncation=True,
            max_length=max_length,
            return_token_type_ids=True,
            return_attention_mask=False,
        )
        ids += [np.array(row, dtype=np.int32) for row in encoded["input_ids"]]
        types += [np.array(row, dtype=np.uint8) for row in encoded["token_type_ids"]]
        lengths += [len(row) for row in encoded["input_ids"]]
        progress(f"{split}: tokenised {len(lengths):,} of {len(texts):,} texts")
    cut = sum(length == max_length for length in lengths)
    progress(f"{split}: {np.mean(lengths):.1f} tokens on average; {cut:,} texts fill or pass max_length={max_length}")
    return {
        f"{split}_ids": np.concatenate(ids),
        f"{split}_types": np.concatenate(types),
        f"{split}_offsets": np.cumsum([0, *lengths], dtype=np.int64),
        f"{split}_labels": texts.labels,
    }


def as_split(split: str, arrays: Mapping[str, np.ndarray], tokenizer: Any, *, max_length: int) -> Split:
    """The split of cached arrays; its batches hold the inputs of the tokenizer's model."""
    tokens = Tokens(
        ids=arrays[f"{split}_ids"],
        types=arrays[f"{split}_types"] if "token_type_ids" in tokenizer.model_input_names else None,
        offsets=arrays[f"{split}_offsets"],
        pad_id=int(tokenizer.pad_token_id),
        max_length=max_length,
    )
    # Copies: PyTorch has no read-only tensors.
    labels = torch.from_numpy(arrays[f"{split}_labels"].copy())
    return Split(inputs=tokens, labels=labels, prepare=dict, lengths=tokens.lengths, groups=tokens.groups)


def tokenizer_digest(tokenizer: Any) -> str:
    """16 hex digits that depend on how the tokenizer changes a text, and on nothing else.

    Compute it before the first use: the tokenizer stores the truncation of its last use.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python: its vocabulary and its class
        text = json.dumps([type(tokenizer).__qualname__, sorted(tokenizer.get_vocab().items())])
    else:
        text = backend.to_str()
    return hashlib.sha256(text.encode()).hexdigest()[:16]
