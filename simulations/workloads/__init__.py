"""Workloads by name: data, models and preset.

To add one, write a file with ``load(*, data_dir, cache_dir, options, progress, public_only) -> Workload`` and enter it
in the registry. Importing this package imports torch, but no data library: ``load`` imports what it needs.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from fedlsg.choices import choose
from simulations.workloads.base.workload import Options, Progress, Split, Workload, build_model, silent, to_device
from simulations.workloads.images import digits, hf_image
from simulations.workloads.images.image_sets import IMAGE_SETS
from simulations.workloads.rows import check_public_only, restrict
from simulations.workloads.texts import hf_text
from simulations.workloads.texts.glue import TASKS

__all__ = [
    "Options", "Progress", "Split", "Workload", "build_model", "load", "names", "presets", "silent", "summary",
    "to_device",
]  # fmt: skip

DEFAULT = Options()

_REGISTRY: Mapping[str, Any] = MappingProxyType(
    {"digits": digits, **IMAGE_SETS, "hf-image": hf_image, **TASKS, "hf-text": hf_text}
)
"""A module, or an ``ImageSet`` or ``Task``: each loads a workload and has its preset."""


def names() -> tuple[str, ...]:
    """The known workloads, the default first."""
    return tuple(_REGISTRY)


def presets(name: str) -> tuple[Mapping[str, object], Mapping[str, Mapping[str, object]]]:
    """A workload's preset, and the values that differ for a method; no data is read."""
    found = choose("workload", name, _REGISTRY)
    return (found.DEFAULTS, found.METHOD_DEFAULTS) if isinstance(found, ModuleType) else (
        found.defaults, found.method_defaults
    )  # fmt: skip


def summary(name: str) -> str:
    """What a workload is, in one line."""
    found = choose("workload", name, _REGISTRY)
    if not isinstance(found, ModuleType):
        return str(found.summary)
    text = str(found.__doc__).splitlines()[0].removeprefix(f"{name}: ")
    return text[:1].upper() + text[1:]


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    options: Options = DEFAULT,
    progress: Progress = silent,
    public_only: bool = False,
) -> Workload:
    """Load a workload by name, with the rows that ``options.train_rows`` and ``options.holdout`` leave it.

    data_dir: a folder in the layout of the Hugging Face repositories; defaults to FEDLSG_DATA, then the hub.
    cache_dir: where decoded data is kept; defaults to FEDLSG_CACHE, then ``~/.cache/fedlsg``.
    options: settings of data and model.
    progress: called with one line of text at a time during slow work.
    public_only: give a training split without rows, for a server whose clients hold their own data. Files of training
        rows are not opened, and may be missing.
    Raises:
        ValueError: unknown name (the message lists the known ones), an option out of range or one that the workload
            does not use, or damaged data.
        OSError: missing data, an unreachable hub, or a cache that cannot be written.
        ImportError: a data library that the base installation does not bring.
    """
    loaded: Workload = choose("workload", name, _REGISTRY).load(
        data_dir=data_dir, cache_dir=cache_dir, options=options, progress=progress, public_only=public_only
    )
    if public_only:
        check_public_only(options)
        return loaded
    return restrict(loaded, options)
