"""``public_rows``: public rows in place of the training split, so that no private row is opened.

data:NAME, data:PATH   the rows of a built-in data set or of a path, as a probe's source reads them
                       (``public_data``)
synthetic              the first synthetic inputs of the workload, with labels of a random teacher

The teacher is the run's model with other initial weights. Its outputs are standardised for each
class over all inputs, so that classes are about equally frequent.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.randomness import public_generator
from fedlsg.simulations import workloads
from fedlsg.simulations.workloads.base import (
    OF_PATCHES,
    LoadedWorkload,
    Options,
    Progress,
    Request,
    silent,
)
from fedlsg.simulations.workloads.base.initial_model import build_model
from fedlsg.simulations.workloads.base.public_inputs import image_draws
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.simulations.workloads.public_data import MASK, as_stored, probe_source, public_data
from fedlsg.simulations.workloads.text_workload import Tokens
from fedlsg.user_code import DATA

SYNTHETIC = "synthetic"
"""The value of the setting for synthetic rows."""
DISTINCT = 5_000
"""The most different synthetic inputs: a thousand images of 32 x 32 pixels take 1.5 seconds."""
TEACHER_SEED = 1_000_003
"""The seed of the teacher's weights; a run may have another seed."""
AT_ONCE = 250
"""Inputs of a batch of the teacher."""
LEAST_DEVIATION = 1e-12
"""A smaller deviation of an output is that of a constant, which is not divided by it."""


def locate(setting: str | None) -> str | None:
    """The setting with an absolute path, if it has a path: workers may be in other folders.

    Raises ValueError for a setting of another form, and for a path that does not exist.
    """
    if setting in (None, SYNTHETIC):
        return setting
    name = str(setting).removeprefix(DATA)
    if not name or name == setting:
        raise ValueError(
            f"expected public_rows as data:NAME, data:PATH or synthetic, got {setting!r}"
        )
    if name in workloads.names():
        return setting
    path = Path(name).expanduser().resolve()
    if not path.exists():
        raise ValueError(
            f"public_rows={setting}: there is no file {path}, and no workload of that name"
        )
    return f"{DATA}{path}"


def load(
    name: str, setting: str, *, data_dir: Path | None, options: Options, progress: Progress = silent
) -> LoadedWorkload:
    """A workload that trains on the public rows that ``setting`` names, with its own test split.

    ``options.holdout`` replaces the test split by a share of the public rows. Then
    ``options.train_rows`` repeats the other rows until they are as many as the kept share of that
    number. So rates, batches and noise are those of a training split of that size. Only rows of the
    workload's classes are used. Columns and given clients of the workload are left out, because
    they are of its training split.

    setting: from ``locate``.
    Raises ValueError for the workload's own data, and for rows that do not fit its models.
    """
    of_head = ("features", "feature_norm", "feature_axes", *OF_PATCHES, "head_width")
    raw = replace(options, **dict.fromkeys(("train_rows", "holdout", *of_head)))
    if options.features is not None:  # then the model is a head on features
        raw = replace(raw, model=None)
    bare = workloads.load(name, data_dir=data_dir, options=raw, progress=progress, public_only=True)
    if setting == SYNTHETIC:
        count = min(options.train_rows or DISTINCT, DISTINCT)
        # what code of a user makes may change, so it is not kept for the next run
        make = _synthetic if workloads.own(name) is None else _synthetic.__wrapped__
        rows = make(name, data_dir, raw, count)
    else:
        place = setting.removeprefix(DATA)
        public = public_data(
            place, bare, data_dir=data_dir, options=raw, progress=progress, setting="public_rows"
        )
        if not public.labelled:
            raise ValueError(
                f"public_rows={setting} holds inputs alone: save a pair of inputs and targets"
            )
        rows = public.split
    rows = _with_classes(rows, bare.num_classes, setting)
    request = Request(
        data_dir=data_dir,
        cache_dir=None,
        options=replace(options, train_rows=None),
        progress=progress,
        public_only=False,
    )
    workload = workloads.restrict(replace(bare, train=rows, columns={}, parts=None), request)
    if options.train_rows is None:
        return workload
    kept = options.train_rows - round((options.holdout or 0.0) * options.train_rows)
    train = workload.train
    return replace(workload, train=train.pick(_repeat(len(train), kept)))


def _with_classes(rows: Split, classes: int | None, setting: str) -> Split:
    """The rows whose class is one of the workload's. Raises ValueError if there is none."""
    if classes is None:
        return rows
    known = (rows.labels < classes).nonzero().squeeze(1)
    if not len(known):
        raise ValueError(f"public_rows={setting}: no row has one of the classes 0 to {classes - 1}")
    return rows if len(known) == len(rows) else rows.pick(known)


def _repeat(count: int, wanted: int) -> Int64[Tensor, " wanted"]:
    """Numbers of ``wanted`` of ``count`` rows, in a fixed public order.

    If there are fewer rows, the order begins again.
    """
    order = torch.randperm(count, generator=public_generator(0, "workload", "public rows"))
    return order[torch.arange(max(wanted, 1)) % count]


@lru_cache(maxsize=1)  # other arguments take its place; public files stay
def _synthetic(name: str, data_dir: Path | None, options: Options, count: int) -> Split:
    """Synthetic rows; kept for the next run of this process with the same workload and model."""
    workload = workloads.load(name, data_dir=data_dir, options=options, public_only=True)
    source = probe_source(workload)
    generator = public_generator(0, "workload", "synthetic rows")
    pixels = workload.pixels
    images = {} if pixels is None else image_draws(replace(pixels, prepare=as_stored))
    if pixels is not None and source.name in images:
        # stored as the workload stores images: features are made of stored images
        stored = images[source.name](count, generator)
        unlabelled = Split(
            inputs=stored, labels=torch.zeros(count, dtype=torch.int64), prepare=pixels.prepare
        )
    else:
        unlabelled = _as_split(source.inputs(count, generator), workload)
    return replace(unlabelled, labels=teacher_labels(workload, options.model, unlabelled))


def teacher_labels(
    workload: LoadedWorkload, model_name: str | None, inputs: Split
) -> Int64[Tensor, " n"]:
    """The class that the random teacher gives each input.

    It is the argmax over classes c of (o_c - mean_c) / deviation_c, where o are the teacher's
    outputs, and mean and deviation are those of o_c over all inputs. It follows from the model, its
    seed and the inputs alone.
    Raises ValueError for targets that are not classes, or a model whose outputs are not one number
    for each class.
    """
    classes = workload.classes("public_rows=synthetic")
    teacher = build_model(workload, model_name, TEACHER_SEED).eval()
    parts = []
    with torch.no_grad():
        for rows in torch.arange(len(inputs)).split(AT_ONCE):
            batch = inputs.batch(rows)[0]
            parts.append(teacher(**batch) if isinstance(batch, Mapping) else teacher(batch))
    outputs = torch.cat(parts).double()
    if outputs.shape != (len(inputs), classes):
        raise ValueError(
            f"public_rows=synthetic needs a model with {classes} outputs for each input, got "
            f"{tuple(outputs.shape)}"
        )
    deviations = outputs.std(0).clamp_min(LEAST_DEVIATION)
    return ((outputs - outputs.mean(0)) / deviations).argmax(1)


def _as_split(inputs: Any, workload: LoadedWorkload) -> Split:
    """Inputs of the model as rows without labels; texts without padding, as the workload stores
    them.
    """
    stored = workload.test.inputs
    if isinstance(inputs, Mapping) and isinstance(stored, Tokens):
        inside = inputs[MASK].bool()
        types = inputs.get("token_type_ids")
        texts = replace(
            stored,
            ids=inputs["input_ids"][inside].numpy().astype(np.int32),
            types=None if types is None else types[inside].numpy().astype(np.uint8),
            offsets=np.concatenate([[0], inside.sum(1).cumsum(0).numpy()]),
        )
        no_labels = torch.zeros(len(texts), dtype=torch.int64)
        return Split(
            inputs=texts, labels=no_labels, prepare=dict, lengths=texts.lengths, groups=texts.groups
        )
    rows = _ModelInputs(inputs)
    no_labels = torch.zeros(len(rows), dtype=torch.int64)
    copy = dict if isinstance(inputs, Mapping) else torch.clone
    return Split(inputs=rows, labels=no_labels, prepare=copy)


class _ModelInputs:
    """Rows that are stored as the model takes them: a tensor, or tensors by name."""

    def __init__(self, inputs: Any) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        if isinstance(self._inputs, Mapping):
            return len(next(iter(self._inputs.values())))
        return len(self._inputs)

    def __getitem__(self, rows: np.ndarray, /) -> Any:
        place = torch.as_tensor(rows)
        if isinstance(self._inputs, Mapping):
            return {key: value[place] for key, value in self._inputs.items()}
        return self._inputs[place]
