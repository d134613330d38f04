"""A text-classification set as a workload: read it, tokenise it into the cache, and give it the chosen encoder."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from simulations.models.encoder import build_encoder
from simulations.models.encoder_source import find_encoder, load_config, load_tokenizer, longest_text
from simulations.workloads.base.cache import cache_folder, digest_files, load_or_build
from simulations.workloads.base.mirror import data_root
from simulations.workloads.base.workload import NoRows, Options, Parquet, Progress, Split, Workload, silent
from simulations.workloads.texts import tokens
from simulations.workloads.texts.source import Columns, Source, check_labels, count_classes, read_parquet

DEFAULT_MODEL = "minilm"
MAX_LENGTH = 128
"""Tokens of a text by default, as in the papers."""

USED = ("pretrained", "train_layers", "max_length", "test_split")
"""Options that every text workload reads."""


def text_workload(
    name: str,
    source: Source,
    *,
    tests: tuple[str, ...],
    columns: Columns,
    num_classes: int | None,
    defaults: Mapping[str, object],
    method_defaults: Mapping[str, Mapping[str, object]],
    options: Options,
    data_dir: Path | None,
    cache_dir: Path | None,
    progress: Progress,
    public_only: bool = False,
) -> Workload:
    """The workload whose splits are ``train`` and ``tests`` of ``source``, tokenised for ``options.model``.

    num_classes: None takes what the data set publishes, see ``count_classes``.
    public_only: the splits are ``tests`` alone.
    It offers one model, the one that its tokens are for; the weights are loaded when it is built.
    Raises ValueError for a ``max_length`` out of range and for damaged data; what finding an encoder raises.
    """
    encoder = find_encoder(options.model or DEFAULT_MODEL, options.pretrained)
    tokenizer = load_tokenizer(encoder, data_root(data_dir))
    max_length = MAX_LENGTH if options.max_length is None else options.max_length
    shortest = tokenizer.num_special_tokens_to_add(pair=len(columns.inputs) > 1) + len(columns.inputs)
    longest = longest_text(load_config(encoder), tokenizer)
    if not shortest <= max_length <= longest:
        raise ValueError(f"expected {shortest} <= {max_length=} <= {longest}, the positions of {encoder.name}")
    names = tests if public_only else ("train", *tests)
    form = tokens.tokenizer_digest(tokenizer)
    parts = (source.digest, form, max_length, columns.names, tests, num_classes)
    key = hashlib.sha256(repr((tokens.FORMAT, *parts)).encode()).hexdigest()[:32]

    def build() -> dict[str, np.ndarray]:
        texts = {split: source.read(split) for split in names}
        classes, origin = (num_classes, "") if num_classes is not None else count_classes(texts, tests)
        if origin:
            progress(f"{name}: {classes} classes, from {origin}")
        arrays = {"classes": np.array([classes])}
        for split, part in texts.items():
            check_labels(part.labels, classes, split=split, name=name)
            arrays |= tokens.tokenise(split, part, tokenizer, max_length=max_length, progress=progress)
        return arrays

    arrays = load_or_build(cache_folder(cache_dir), f"{name}-{key}", build, progress=progress)
    splits = {split: tokens.as_split(split, arrays, tokenizer, max_length=max_length) for split in names}
    classes = int(arrays["classes"][0])
    builder = partial(build_encoder, encoder, num_classes=classes, train_layers=options.train_layers)
    return Workload(
        name=name,
        train=splits.get("train", NoRows()),
        test=splits[tests[0]],
        test_name=tests[0],
        other_tests={split: splits[split] for split in tests[1:]},
        num_classes=classes,
        models=MappingProxyType({encoder.name: builder}),
        defaults=defaults,
        method_defaults=method_defaults,
        parquet=_own_rows(name, columns, classes, tokenizer, form, max_length),
    )


def _own_rows(name: str, columns: Columns, num_classes: int, tokenizer: Any, form: str, max_length: int) -> Parquet:
    """A reader of a client's own texts, tokenised for one model. ``form``: the digest of the tokenizer."""

    def rows(paths: Sequence[Path], cache: Path) -> Split:
        def build() -> dict[str, np.ndarray]:
            texts = read_parquet(paths, columns)
            check_labels(texts.labels, num_classes, split="train", name=name)
            return tokens.tokenise("train", texts, tokenizer, max_length=max_length, progress=silent)

        key = digest_files(paths, salt=f"own {tokens.FORMAT} {form} {max_length} {columns.names}")
        arrays = load_or_build(cache, f"own-{key}", build, progress=silent)
        return tokens.as_split("train", arrays, tokenizer, max_length=max_length)

    return rows
