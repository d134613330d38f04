"""A text-classification set as a workload: read, tokenised into the cache, with an encoder.

A split of N texts with S tokens in all is stored as ``ids`` (S,) int32, ``types`` (S,) uint8 and
``offsets`` (N + 1,) int64: text i is ``ids[offsets[i]:offsets[i + 1]]``, special tokens included.
Padding is not stored.

Padded lengths are PADDED_LENGTHS below ``max_length``, and ``max_length``. The padded length
changes the rounding of a text's gradient, in bfloat16 by up to 1 % (docs/results/sensitivity.md).
If the longest text of a batch set the length, one text more or less would change the gradients of
all others. So only texts of one padded length train together. In a batch all texts are padded, or
(those of ``max_length`` tokens) none is: encoders compute differently if a whole batch has no
padding.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.simulations.models.encoder import build_encoder
from fedlsg.simulations.models.encoder_source import (
    EncoderSource,
    find_encoder,
    load_config,
    load_tokenizer,
    longest_text,
)
from fedlsg.simulations.workloads.base import LoadedWorkload, Progress, Request, silent
from fedlsg.simulations.workloads.base.cache import cache_folder, digest_files, load_or_build
from fedlsg.simulations.workloads.base.public_inputs import WordDraw
from fedlsg.simulations.workloads.base.split import NoRows, Split
from fedlsg.simulations.workloads.features.encoders import text_source
from fedlsg.simulations.workloads.rows.decode import (
    OwnRows,
    TextColumns,
    Texts,
    check_text_labels,
    count_classes,
    read_texts,
)
from fedlsg.simulations.workloads.rows.hub import HubSet, set_of_files
from fedlsg.simulations.workloads.rows.shards import data_root

DEFAULT_MODEL = "minilm"
"""The model of texts, if none is named."""
MAX_LENGTH = 128
"""The most tokens of a text by default, as in the papers."""
USED = ("train_layers", "encoder_dropout", "max_length", "test_split")
"""Options that every text workload reads."""
ROWS_AT_ONCE = 10_000
"""Texts that are tokenised at a time."""
PADDED_LENGTHS = (
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    3072,
    4096,
    6144,
    8192,
)
"""Padded lengths, in tokens; each is at most 1.5 times the one before.

On SST-2 they take 16 % more tokens than sorted batches of 32.
"""
FORMAT = "tokens int32, types uint8, version 1"
"""A part of the key of cached arrays; another form needs another text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """Tokenised texts, possibly memory-mapped; ``tokens[rows]`` are the padded tensors of a batch.

    ids, offsets: see the top of this file.
    types: the text of a pair that a token belongs to (0 or 1). None for a model that does not read
        it.
    pad_id: the token of the padding.
    max_length: the most tokens of a text, a public setting.
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
        """The padded length of every group of texts, ascending.

        The last two are ``max_length``. Texts of the last group have that many tokens, so they have
        no padding; those of the group before have fewer.
        """
        shorter = [length for length in PADDED_LENGTHS if length < self.max_length]
        return np.array([*shorter, self.max_length, self.max_length])

    def group(self, lengths: np.ndarray) -> np.ndarray:
        """The group of texts with these lengths: the first with a larger width, else the last."""
        groups: np.ndarray = np.searchsorted(self.widths[:-1], lengths, side="right")
        return groups

    @property
    def groups(self) -> Int64[Tensor, " n"]:
        """The group of every text: those of one group are padded to one length."""
        return torch.from_numpy(self.group(np.diff(self.offsets)).astype(np.int64))

    def __getitem__(self, rows: np.ndarray, /) -> dict[str, Tensor]:
        """``input_ids``, ``attention_mask`` and, if the model reads it, ``token_type_ids``: (B, T)
        int64.

        T is the padded length of the longest of the rows; rows of one group have the same. The
        padding is on the right: ``pad_id``, mask 0, type 0.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        place = np.arange(int(self.widths[self.group(lengths).max(initial=0)]))
        inside = place < lengths[:, None]  # (B, T)
        where = np.where(inside, starts[:, None] + place, 0)  # places in ``ids``
        padded = {
            "input_ids": np.where(inside, self.ids[where], self.pad_id),
            "attention_mask": inside,
        }
        if self.types is not None:
            padded["token_type_ids"] = np.where(inside, self.types[where], 0)
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in padded.items()}


def tokenise_split(
    split: str, texts: Texts, tokenizer: Any, *, max_length: int, progress: Progress
) -> dict[str, np.ndarray]:
    """The arrays of one split, ``{split}_ids``, ``_types``, ``_offsets`` and ``_labels``.

    A text or pair of more than ``max_length`` tokens is cut, the longer of a pair first. How many
    texts reach this length is reported to ``progress``.
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
    full = sum(length == max_length for length in lengths)
    progress(
        f"{split}: {np.mean(lengths):.1f} tokens on average; {full:,} texts fill or pass "
        f"max_length={max_length}"
    )
    return {
        f"{split}_ids": np.concatenate(ids),
        f"{split}_types": np.concatenate(types),
        f"{split}_offsets": np.cumsum([0, *lengths], dtype=np.int64),
        f"{split}_labels": texts.labels,
    }


def tokenizer_digest(tokenizer: Any) -> str:
    """16 hex digits that depend on how the tokenizer changes a text; of one in Python, on its class
    and vocabulary.

    Compute it before the first use: the tokenizer stores the truncation of its last use.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python
        text = json.dumps([type(tokenizer).__qualname__, sorted(tokenizer.get_vocab().items())])
    else:
        text = backend.to_str()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def text_workload(
    name: str,
    source: HubSet,
    request: Request,
    *,
    tests: tuple[str, ...],
    columns: TextColumns,
    num_classes: int | None,
    defaults: Mapping[str, object],
    method_defaults: Mapping[str, Mapping[str, object]],
) -> LoadedWorkload:
    """The workload whose splits are ``train`` and ``tests`` of ``source``, as tokens of a model.

    It offers one model, the one that its tokens are for: that of ``options.features`` if they are
    given, else ``options.model``. The weights are loaded when it is built.

    num_classes: None takes the number that the data set publishes, see ``count_classes``.
    Raises ValueError for a ``max_length`` out of range and for damaged data; and the errors of
    ``find_encoder``.
    """
    options, progress = request.options, request.progress
    if options.features is None:
        encoder = find_encoder(options.model or DEFAULT_MODEL, options.pretrained)
    else:
        encoder = text_source(options.features)
    form = _form(encoder, columns, options.max_length, data_root(request.data_dir))
    names = tests if request.public_only else ("train", *tests)
    parts = (
        FORMAT,
        source.digest(columns.names),  # and of its splits: without "train" if ``public_only``
        form.digest,
        form.max_length,
        columns.names,
        tests,
        num_classes,
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def build() -> dict[str, np.ndarray]:
        texts = {split: read_texts(source.splits[split], columns) for split in names}
        count = num_classes
        if count is None:
            count, origin = count_classes(texts, tests)
            progress(f"{name}: {count} classes, from {origin}")
        return {"classes": np.array([count])} | form.tokenise(texts, count, name, progress)

    arrays = load_or_build(
        cache_folder(request.cache_dir), f"{name}-{key}", build, progress=progress
    )
    splits = {split: form.split_of(split, arrays) for split in names}
    classes = int(arrays["classes"][0])
    builder = partial(
        build_encoder,
        encoder,
        num_classes=classes,
        train_layers=options.train_layers,
        dropout=options.encoder_dropout or 0.0,
    )
    return LoadedWorkload(
        name=name,
        train=splits.get("train", NoRows()),
        test=splits[tests[0]],
        test_name=tests[0],
        other_tests={split: splits[split] for split in tests[1:]},
        num_classes=classes,
        models=MappingProxyType({encoder.name: builder}),
        defaults=defaults,
        method_defaults=method_defaults,
        read=OwnRows(
            name=name,
            test=splits[tests[0]],
            parquet=partial(_own_rows, name, columns, classes, form),
            hub_name=source.hub_name,
        ),
        synthetic={"tokens": WordDraw(form.tokenizer, len(columns.inputs), form.max_length)},
    )


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How texts become tokens.

    tokenizer: of the model.
    digest: ``tokenizer_digest`` of it.
    max_length: the most tokens of a text.
    """

    tokenizer: Any
    digest: str
    max_length: int

    def tokenise(
        self, texts: Mapping[str, Texts], num_classes: int, name: str, progress: Progress
    ) -> dict[str, np.ndarray]:
        """The arrays of some splits, whose labels are checked."""
        arrays: dict[str, np.ndarray] = {}
        for split, part in texts.items():
            check_text_labels(part.labels, num_classes, split=split, name=name)
            arrays |= tokenise_split(
                split, part, self.tokenizer, max_length=self.max_length, progress=progress
            )
        return arrays

    def split_of(self, split: str, arrays: Mapping[str, np.ndarray]) -> Split:
        """The split of cached arrays; its batches hold the inputs of the tokenizer's model."""
        reads_types = "token_type_ids" in self.tokenizer.model_input_names
        tokens = Tokens(
            ids=arrays[f"{split}_ids"],
            types=arrays[f"{split}_types"] if reads_types else None,
            offsets=arrays[f"{split}_offsets"],
            pad_id=int(self.tokenizer.pad_token_id),
            max_length=self.max_length,
        )
        # a copy: PyTorch has no read-only tensors
        labels = torch.from_numpy(arrays[f"{split}_labels"].copy())
        return Split(
            inputs=tokens, labels=labels, prepare=dict, lengths=tokens.lengths, groups=tokens.groups
        )


def _form(
    encoder: EncoderSource, columns: TextColumns, max_length: int | None, root: Path | None
) -> _Form:
    """The form of texts for an encoder. Raises ValueError for a ``max_length`` out of range."""
    tokenizer = load_tokenizer(encoder, root)
    max_length = MAX_LENGTH if max_length is None else max_length
    texts = len(columns.inputs)
    # special tokens, and one token of each text
    shortest = tokenizer.num_special_tokens_to_add(pair=texts > 1) + texts
    longest = longest_text(load_config(encoder), tokenizer)
    if not shortest <= max_length <= longest:
        raise ValueError(
            f"expected {shortest} <= {max_length=} <= {longest}, the positions of {encoder.name}"
        )
    return _Form(tokenizer=tokenizer, digest=tokenizer_digest(tokenizer), max_length=max_length)


def _own_rows(
    name: str,
    columns: TextColumns,
    num_classes: int,
    form: _Form,
    paths: Sequence[Path],
    cache: Path,
) -> Split:
    """A client's own texts of parquet files, tokenised for one model."""

    def build() -> dict[str, np.ndarray]:
        parts = set_of_files({"train": paths}).splits["train"]
        return form.tokenise({"train": read_texts(parts, columns)}, num_classes, name, silent)

    key = digest_files(paths, salt=f"own {FORMAT} {form.digest} {form.max_length} {columns.names}")
    return form.split_of("train", load_or_build(cache, f"own-{key}", build, progress=silent))
