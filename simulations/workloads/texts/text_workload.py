"""A text-classification set as a workload: read it, tokenise it into the cache, and give it the chosen encoder."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from simulations.models.encoder import build_encoder
from simulations.models.encoder_source import EncoderSource, find_encoder, load_config, load_tokenizer, longest_text
from simulations.workloads.base.cache import cache_folder, digest_files, load_or_build
from simulations.workloads.base.mirror import data_root
from simulations.workloads.base.workload import LoadedWorkload, NoRows, Progress, Request, Split, silent
from simulations.workloads.features.encoders import text_source
from simulations.workloads.rows.hub import HubSet, of_shards
from simulations.workloads.rows.texts import Columns, Texts, check_labels, count_classes, read_texts
from simulations.workloads.texts import tokens
from simulations.workloads.texts.bags import WordDraw

DEFAULT_MODEL = "minilm"
MAX_LENGTH = 128
"""Tokens of a text by default, as in the papers."""

USED = ("train_layers", "max_length", "test_split")
"""Options that every text workload reads."""


def text_workload(
    name: str,
    source: HubSet,
    request: Request,
    *,
    tests: tuple[str, ...],
    columns: Columns,
    num_classes: int | None,
    defaults: Mapping[str, object],
    method_defaults: Mapping[str, Mapping[str, object]],
) -> LoadedWorkload:
    """The workload whose splits are ``train`` and ``tests`` of ``source``, tokenised for ``options.model``.

    num_classes: None takes what the data set publishes, see ``count_classes``.
    It offers one model, the one that its tokens are for: that of ``options.features``, if they are given. The weights
    are loaded when it is built.
    Raises ValueError for a ``max_length`` out of range and for damaged data; what finding an encoder raises.
    """
    options, progress = request.options, request.progress
    if options.features is None:
        encoder = find_encoder(options.model or DEFAULT_MODEL, options.pretrained)
    else:
        encoder = text_source(options.features)
    form = _form(encoder, columns, options.max_length, data_root(request.data_dir))
    names = tests if request.public_only else ("train", *tests)
    parts = (
        tokens.FORMAT,
        source.digest(columns.names),
        form.digest,
        form.max_length,
        columns.names,
        tests,
        num_classes,
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def build() -> dict[str, np.ndarray]:
        texts = {split: read_texts(source.splits[split], columns) for split in names}
        classes = _count_classes(name, texts, tests, progress) if num_classes is None else num_classes
        return {"classes": np.array([classes])} | form.tokenise(texts, classes, name, progress)

    arrays = load_or_build(cache_folder(request.cache_dir), f"{name}-{key}", build, progress=progress)
    splits = {split: form.split(split, arrays) for split in names}
    classes = int(arrays["classes"][0])
    builder = partial(build_encoder, encoder, num_classes=classes, train_layers=options.train_layers)
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
        parquet=partial(_own_rows, name, columns, classes, form),
        synthetic={"tokens": WordDraw(form.tokenizer, len(columns.inputs), form.max_length)},
    )


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How texts become tokens: the tokenizer of a model, its digest, and the most tokens of a text."""

    tokenizer: Any
    digest: str
    max_length: int

    def tokenise(
        self, texts: Mapping[str, Texts], num_classes: int, name: str, progress: Progress
    ) -> dict[str, np.ndarray]:
        """The arrays of some splits, whose labels are checked."""
        arrays: dict[str, np.ndarray] = {}
        for split, part in texts.items():
            check_labels(part.labels, num_classes, split=split, name=name)
            arrays |= tokens.tokenise(split, part, self.tokenizer, max_length=self.max_length, progress=progress)
        return arrays

    def split(self, split: str, arrays: Mapping[str, np.ndarray]) -> Split:
        return tokens.as_split(split, arrays, self.tokenizer, max_length=self.max_length)


def _count_classes(name: str, texts: Mapping[str, Texts], tests: tuple[str, ...], progress: Progress) -> int:
    classes, origin = count_classes(texts, tests)
    progress(f"{name}: {classes} classes, from {origin}")
    return classes


def _form(encoder: EncoderSource, columns: Columns, max_length: int | None, root: Path | None) -> _Form:
    tokenizer = load_tokenizer(encoder, root)
    max_length = MAX_LENGTH if max_length is None else max_length
    shortest = tokenizer.num_special_tokens_to_add(pair=len(columns.inputs) > 1) + len(columns.inputs)
    longest = longest_text(load_config(encoder), tokenizer)
    if not shortest <= max_length <= longest:
        raise ValueError(f"expected {shortest} <= {max_length=} <= {longest}, the positions of {encoder.name}")
    return _Form(tokenizer=tokenizer, digest=tokens.tokenizer_digest(tokenizer), max_length=max_length)


def _own_rows(name: str, columns: Columns, num_classes: int, form: _Form, paths: Sequence[Path], cache: Path) -> Split:
    """A client's own texts of parquet files, tokenised for one model."""

    def build() -> dict[str, np.ndarray]:
        return form.tokenise(
            {"train": read_texts(of_shards({"": paths}).splits[""], columns)}, num_classes, name, silent
        )

    key = digest_files(paths, salt=f"own {tokens.FORMAT} {form.digest} {form.max_length} {columns.names}")
    return form.split("train", load_or_build(cache, f"own-{key}", build, progress=silent))
