"""``fedlsg pretrain``: from words to a folder with weights that a run starts from."""

import math
import os
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from fedlsg.carriers import find_classifier
from fedlsg.carriers.probe import ProbeSource
from fedlsg.choices import choose
from fedlsg.randomness import public_generator
from fedlsg.user_code import DATA, absolute, is_reference, shown
from fedlsg.version import version
from simulations import workloads
from simulations.pretrain.tasks import TASKS
from simulations.pretrain.train import Schedule, pretrain
from simulations.report.progress import count_bar
from simulations.rundir.model_files import write_model
from simulations.settings.device import device_of
from simulations.settings.run import Device
from simulations.workloads.probes import probe_source

FORMAT = 1


def pretrain_command(
    workload: str,
    console: Console,
    *,
    model: str | None,
    source: str,
    task: str,
    images: int,
    schedule: Schedule,
    seed: int,
    threads: int,
    device: Device,
    data_dir: str | None,
    out: str | None,
) -> None:
    """Train, write the folder whole or not at all, and print how a run starts from it.

    The workload gives the model, the size of its images and their normalisation. No training row of it is opened, but
    to compare public data (``data:``) with them.
    Raises ValueError for an existing folder, inputs that are no images, and what ``probe_source`` refuses.
    """
    chosen = choose("task", task, TASKS)
    name = absolute(workload) if is_reference(workload) else workload
    if threads < 1:
        raise ValueError(f"expected --threads {threads} >= 1")
    if not 0 < schedule.learning_rate < math.inf:
        raise ValueError(f"expected 0 < --learning-rate {schedule.learning_rate} < inf")
    torch.set_num_threads(threads)
    where = None if data_dir is None else Path(data_dir)
    # public data are compared with the training rows, or none of these is opened
    loaded = workloads.load(name, data_dir=where, public_only=not source.startswith(DATA))
    model = model or loaded.default_model
    folder = Path(out or f"pretrained/{Path(shown(name)).stem}-{model}").expanduser().resolve()
    if folder.exists():
        raise ValueError(f"{folder} exists: nothing is overwritten, choose another --out")
    check_writable(folder)
    made = workloads.build_model(loaded, model, seed).to(device_of(device))
    found = probe_source(loaded, source, data_dir=where)
    inputs = images_of(found, images, seed)
    say(console, f"{task} on {images} images of {found.name}: {schedule.steps} steps of {schedule.batch}")
    start = time.perf_counter()
    with count_bar(console, "step", schedule.steps) as advance:

        def report(step: int, loss: float) -> None:
            advance(f"loss {loss:.3f}")

        losses = pretrain(made, loaded.classifier, inputs, chosen, schedule, seed=seed, report=report)
    seconds = time.perf_counter() - start
    facts = {
        "format": FORMAT,
        "fedlsg": version(),
        "workload": shown(name),
        "model": model,
        "class": f"{type(made).__module__}.{type(made).__qualname__}",
        "seed": seed,
        "pretrained_on": {"source": found.name, "task": task, "images": images, **vars(schedule)},
        "loss": {"first": losses[0], "last": losses[-1]},
        "seconds": round(seconds, 1),
    }
    classifier = f"{find_classifier(made, loaded.classifier)}."
    write(folder, {key: value for key, value in made.state_dict().items() if not key.startswith(classifier)}, facts)
    say(console, f"loss {losses[0]:.3f} at the start, {losses[-1]:.3f} at the end, {seconds:.0f} s")
    words = ["fedlsg", "run", workload, "-c", f"model={model}", "-c", f"pretrained={folder}"]
    say(console, f"start from it: {shlex.join(words)}")


def images_of(source: ProbeSource, count: int, seed: int) -> Float[Tensor, "count c h w"]:
    """Images of a source, normalised. Raises ValueError for inputs that are none."""
    inputs = source.inputs(count, public_generator(seed, "pretrain", "images"))
    if not isinstance(inputs, Tensor) or inputs.ndim != 4 or not inputs.is_floating_point():
        raise ValueError(f"pretraining needs images (count, channels, height, width): {source.name} gives none")
    return inputs


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def check_writable(folder: Path) -> None:
    """Raise ValueError before the training if ``write`` could not write; leaves nothing."""
    try:
        with TemporaryDirectory(dir=next(place for place in folder.parents if place.exists())):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from None


def write(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """model.safetensors and config.json in a new folder, whole or not at all."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        write_model(partial, tensors, facts)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
