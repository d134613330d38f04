"""Workloads by name: data, models and preset.

To add one here, write a file with ``load(request: Request) -> LoadedWorkload`` and enter it in the
registry. A workload of a user's own (``fedlsg.Workload``) is named as ``FILE.py:NAME`` or
``MODULE:NAME``, is given under a name (``give``), or is offered by an installed package as an entry
point in ``fedlsg.workloads``. Importing this package imports torch, but no data library: ``load``
imports what it needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg import user_code
from fedlsg.config import summary_of
from fedlsg.config.choices import did_you_mean
from fedlsg.simulations.models.pretrained import with_pretrained
from fedlsg.simulations.workloads.base import LoadedWorkload, Options, Progress, Request, silent
from fedlsg.simulations.workloads.base.initial_model import build_model
from fedlsg.simulations.workloads.base.split import (
    HOLDOUT,
    Fetch,
    Split,
    fetcher,
    hold_out,
    permutation,
    to_device,
)
from fedlsg.simulations.workloads.features import with_features
from fedlsg.simulations.workloads.images import IMAGE_SETS, HubImages, digits, imagenet
from fedlsg.simulations.workloads.text_sets import TASKS, HubTexts
from fedlsg.simulations.workloads.user_workload import Workload, make

__all__ = [
    "Fetch",
    "LoadedWorkload",
    "Options",
    "Progress",
    "Split",
    "Workload",
    "build_model",
    "fetcher",
    "give",
    "load",
    "names",
    "own",
    "presets",
    "restrict",
    "silent",
    "summary",
    "to_device",
]

DEFAULT = Options()
"""Options that all have the workload's defaults."""

_REGISTRY: Mapping[str, Any] = MappingProxyType(
    {
        "digits": digits,
        **IMAGE_SETS,
        "imagenet": imagenet,
        "hf-image": HubImages(),
        **TASKS,
        "hf-text": HubTexts(),
    }
)
"""What loads each workload and has its preset: modules, and objects with the same function."""


GROUP = "fedlsg.workloads"
"""The entry point group of packages that offer workloads."""
_GIVEN: dict[str, Workload] = {}
"""Workloads that ``give`` named, by their names."""
_MADE: dict[str, tuple[Any, Workload]] = {}
"""Functions of references and entry points, and the workload that each returned, by name."""


def names() -> tuple[str, ...]:
    """The known workloads, the default first; what installed packages offer comes last."""
    return (*_REGISTRY, *user_code.offered(GROUP))


def built_in() -> tuple[str, ...]:
    """The workloads of fedlsg, whose names say which rows they have."""
    return (*_REGISTRY,)


def give(name: str, workload: Workload) -> None:
    """Let this process find a workload under a name. Raises ValueError for a name that is taken."""
    if name in names():
        raise ValueError(
            f"{name!r} is a workload of fedlsg or of an installed package: give yours another name"
        )
    _GIVEN[name] = workload


def own(name: str) -> Workload | None:
    """The workload of a user's own that has this name; None for those of fedlsg.

    Raises ValueError for a reference to something else, and if this process runs no code that a
    setting names.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    if name in user_code.offered(GROUP) and name not in _REGISTRY:
        workload = user_code.imported(user_code.offered(GROUP)[name])
    elif user_code.is_reference(name):
        workload = user_code.load(name, "workload")
    else:
        return None
    if name not in _MADE or _MADE[name][0] is not workload:  # a changed file gives another function
        _MADE[name] = workload, make(workload, name)
    return _MADE[name][1]


def _source(name: str) -> Any:
    """What loads the workload and has its preset. Raises ValueError for an unknown name."""
    workload = own(name)
    if workload is None and name not in _REGISTRY:
        raise ValueError(f"unknown workload {name!r}{_meant(name)}")
    return _REGISTRY[name] if workload is None else workload


OWN_DATA = (
    "data of your own are simulate(train=...) in Python, or FILE.py:NAME of a function that "
    "returns a fedlsg.Workload (fedlsg docs own); one of a script or notebook is known there alone"
)


def _meant(name: str) -> str:
    """The end of a message about an unknown workload."""
    if Path(name).suffix or Path(name).exists():
        return f": it is the name of a built-in data set, and {name} is one of files; {OWN_DATA}"
    longer = [known for known in _REGISTRY if len(name) > 3 and name in known]
    near = did_you_mean(name, _REGISTRY) or ","
    if longer:
        near = f"; did you mean {longer[0]!r}?"
    return f"{near} expected one of {', '.join(_REGISTRY)}; {OWN_DATA}"


def presets(name: str) -> tuple[Mapping[str, object], Mapping[str, Mapping[str, object]]]:
    """A workload's preset, and the values that differ for a method; no data is read."""
    source = _source(name)
    if isinstance(source, ModuleType):
        return source.DEFAULTS, source.METHOD_DEFAULTS
    return source.defaults, source.method_defaults


def summary(name: str) -> str:
    """What a workload is, in one line."""
    source = _source(name)
    if not isinstance(source, ModuleType):
        return str(source.summary)
    text = summary_of(source.__doc__).removeprefix(f"{name}: ")
    return text[:1].upper() + text[1:]


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    options: Options = DEFAULT,
    progress: Progress = silent,
    public_only: bool = False,
    seed: int | None = None,
    few_rows: bool = False,
) -> LoadedWorkload:
    """Load a workload by name, with the rows that ``options`` leave it (``restrict``).

    data_dir: a folder in the layout of the Hugging Face repositories; defaults to FEDLSG_DATA, then
    the hub.
    cache_dir: where decoded data is kept; defaults to FEDLSG_CACHE, then ``~/.cache/fedlsg``.
    options: settings of data and model.
    progress: called with one line of text at a time during slow work.
    public_only: give a training split without rows, for a server whose clients hold their own data.
        Files of training rows are not opened, and may be missing.
    seed: that of a reproducible run, from which rows of a Dataset draw. None: their draws are
        secret and new.
    few_rows: few training rows will be read, as by a plan: features are made of these alone.
    Raises:
        ValueError: unknown name (the message lists the known ones), an option out of range or one
            that the workload does not use, or damaged data.
        OSError: missing data, an unreachable hub, or a cache that cannot be written.
        ImportError: a data library that the base installation does not bring.
    """
    request = Request(
        data_dir=data_dir,
        cache_dir=cache_dir,
        options=options,
        progress=progress,
        public_only=public_only,
        seed=seed,
        few_rows=few_rows,
    )
    loaded: LoadedWorkload = _source(name).load(request)
    # the encoder of texts has found its checkpoint itself
    if options.pretrained is not None and loaded.test.lengths is None:
        loaded = replace(loaded, models=_with_weights(loaded, options, progress))
    if not public_only:
        return restrict(loaded, request)
    for setting in ("train_rows", "holdout"):
        if getattr(options, setting) is not None:
            raise ValueError(
                f"{setting} chooses among training rows, and clients hold data of their own: leave "
                "it out"
            )
    return loaded if options.features is None else with_features(loaded, request)


def _with_weights(
    workload: LoadedWorkload, options: Options, say: Progress
) -> Mapping[str, Callable[[], nn.Module]]:
    """Every model of the workload, filled with the weights that the options name."""
    how = {"sha256": options.pretrained_sha256, "classifier": workload.classifier, "say": say}
    source = str(options.pretrained)
    return MappingProxyType(
        {name: with_pretrained(build, source, **how) for name, build in workload.models.items()}
    )


def restrict(workload: LoadedWorkload, request: Request) -> LoadedWorkload:
    """The workload with fewer training rows, held-out test rows and features, as options say.

    In this order: rows without a client of the data's own are left out; ``train_rows`` of the rest
    are kept; inputs become ``features``; the share ``holdout`` of the rows replaces the test
    splits. Data without test rows have theirs held out before they are read.

    Fixed public permutations choose the rows. They depend on the number of rows only: two runs with
    the same setting see the same rows with any seed. A held-out accuracy is computed from private
    examples without noise: choose hyperparameters with it in simulation, on data that you may look
    at, because no epsilon covers it.
    Raises ValueError for more rows than there are, or a share that leaves one side empty.
    """
    options = request.options
    if workload.parts is not None and (workload.parts.owner < 0).any():
        workload = _only(workload, torch.from_numpy(np.flatnonzero(workload.parts.owner >= 0)))
    if options.train_rows is not None:
        workload = _only(workload, _fewer_rows(workload, options.train_rows))
    if options.features is not None:
        workload = with_features(workload, request)
    is_held_out = workload.test_name == HOLDOUT  # of data without test rows
    if options.holdout is not None and not is_held_out:
        kept, held_out = hold_out(len(workload.train), options.holdout, workload.name)
        columns = {name: values[held_out.numpy()] for name, values in workload.columns.items()}
        workload = replace(
            _only(workload, kept),
            test=workload.train.pick(held_out),
            test_columns=columns,
            test_name=HOLDOUT,
            other_tests={},
        )
    return workload


def _only(workload: LoadedWorkload, rows: Int64[Tensor, " n"]) -> LoadedWorkload:
    """The workload with these training rows, in this order, and their columns and clients."""
    parts = None if workload.parts is None else workload.parts.pick(rows.numpy())
    columns = {name: values[rows.numpy()] for name, values in workload.columns.items()}
    is_kept = torch.zeros(len(workload.train), dtype=torch.bool)
    is_kept[rows] = True
    others = (~is_kept).nonzero().squeeze(1)
    left_out = workload.left_out
    if len(others):
        left_out = (*left_out, workload.train.pick(others))
    return replace(
        workload, train=workload.train.pick(rows), columns=columns, parts=parts, left_out=left_out
    )


def _fewer_rows(workload: LoadedWorkload, count: int) -> Int64[Tensor, " count"]:
    """The first ``count`` rows of a fixed public permutation of the training split, ascending."""
    size = len(workload.train)
    if not 1 <= count <= size:
        raise ValueError(
            f"expected 1 <= train_rows={count} <= {size}, the training rows of {workload.name}"
        )
    return permutation("train rows", size)[:count].sort().values
