"""What the carriers of a run are probed from, found when a process first draws: only some of them ever do."""

import hashlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg import user_code
from fedlsg.carriers.probe import ProbeSource
from fedlsg.carriers.probe.carrier import Draw, on_device_of
from fedlsg.randomness import public_generator
from simulations.settings.run import Resolved
from simulations.workloads import LoadedWorkload, Options
from simulations.workloads.public_data import forms, probe_source

TRIED = 2
"""Inputs that are drawn before a run, to see whether the model takes them."""
DIGESTED = 256
"""Rows of public data in a digest."""


def found_source(spec: str, workload: LoadedWorkload, settings: Resolved) -> ProbeSource:
    """The source that the settings name. Raises ValueError for one that the workload has not, or must not have."""
    options = Options(**{f.name: getattr(settings, f.name) for f in fields(Options)})
    data_dir = None if settings.data_dir is None else Path(settings.data_dir)
    return probe_source(workload, spec, data_dir=data_dir, options=options)


def late_source(spec: str, workload: LoadedWorkload, find: Callable[[], ProbeSource], *, deployed: bool) -> ProbeSource:
    """The source that ``find`` finds at the first draw.

    A ``deployed`` client runs no function and reads no path that a setting names: it is sent what it cannot derive.
    """

    def draw(count: int, generator: torch.Generator) -> Any:
        drawing = find().draw
        assert drawing is not None
        return drawing(count, generator)

    may_draw: Draw | None = None if deployed and ":" in spec else draw
    return ProbeSource(name=user_code.shown(spec), draw=may_draw, loss=workload.loss, num_classes=workload.num_classes)


@torch.no_grad()
def check_source(source: ProbeSource, model: nn.Module, workload: LoadedWorkload) -> None:
    """Raise ValueError, naming the source, unless the model takes what it draws, and it draws the same again."""
    first, again = (source.inputs(TRIED, public_generator(0, "probe", "check")) for _ in range(2))
    if not all(map(_equal, _fields(first), _fields(again))):
        raise ValueError(
            f"source={source.name} gives other inputs when it is called again, so that server and clients would not "
            "have the same carriers: draw from the generator that it is given only"
        )
    inputs = on_device_of(model.eval(), first)
    try:
        model(**inputs) if isinstance(inputs, dict) else model(inputs)
    except Exception as error:
        wanted = forms(workload.test.batch(torch.zeros(1, dtype=torch.int64))[0])
        raise ValueError(
            f"source={source.name} gives inputs {forms(first)}, and the model fails on them "
            f"({type(error).__name__}: {error}); inputs of {workload.name} are {wanted}"
        ) from error


def source_digest(source: ProbeSource) -> str:
    """SHA-256 of some rows of a source, hexadecimal: of user-named data, another file or another number of rows."""
    drawn = _fields(source.inputs(DIGESTED, public_generator(0, "probe", "digest")))
    sha = hashlib.sha256()
    for value in drawn:
        sha.update(f"{value.dtype} {tuple(value.shape)}\n".encode() + value.contiguous().cpu().numpy().tobytes())
    return sha.hexdigest()


def _fields(inputs: Any) -> list[Tensor]:
    return list(inputs.values()) if isinstance(inputs, dict) else [inputs]


def _equal(first: Tensor, again: Tensor) -> bool:
    return first.shape == again.shape and torch.allclose(first, again, rtol=0, atol=0, equal_nan=True)
