"""Digests of the weights that a run has trained are kept for later processes.

By them, weights are recognised as trained on the rows of the run, in any file
(``fedlsg.privacy.known_weights``).

The files are those that ``storage.declared`` says hold weights: the last model, the best one, both
checkpoints with their average, weights of recorded rounds, and what is exported.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from fedlsg.gradients import trainable
from fedlsg.privacy.known_weights import SECONDS, WEIGHTS
from fedlsg.privacy.trained_weights import MAX_NOTED_PARAMETERS
from fedlsg.privacy.weight_digest import (
    DIGEST_BYTES,
    digests_of,
    rounded_digests,
    samples_of,
)
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.storage.atomic_files import load_array, load_checkpoint
from fedlsg.simulations.storage.declared import RUN
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import read_model

Tensors = Mapping[str, Tensor]
Reader = Callable[[Path, Tensors], Iterable[Tensors]]
"""Gives the weights in a file. It gets the parameters that the run trains, as they began."""
RARELY = 50
"""The pause between two writes is at least this many times as long as a write takes."""


def _model(path: Path, trained: Tensors) -> Iterator[Tensors]:
    tensors, facts = read_model(path.parent)
    yield {name: tensors[name] for name in facts["trained"] if name in tensors}


def _checkpoint(path: Path, trained: Tensors) -> Iterator[Tensors]:
    server = load_checkpoint(path)["server"]
    yield server["model"]
    if server["average"] is not None:
        yield _parts(server["average"], trained)


def _flat(path: Path, trained: Tensors) -> Iterator[Tensors]:
    yield _parts(torch.from_numpy(load_array(path)), trained)


def _parts(flat: Tensor, trained: Tensors) -> Tensors:
    """A vector of all trained parameters as tensors by name."""
    parts = flat.split([tensor.numel() for tensor in trained.values()])
    each = zip(trained.items(), parts, strict=True)
    return {name: part.view(like.shape) for (name, like), part in each}


def _elsewhere(path: Path, trained: Tensors) -> Iterator[Tensors]:
    """No weights: they are those of the model, or noted by the command that merges them."""
    return iter(())


READERS: Mapping[str, Reader] = MappingProxyType(
    {"model": _model, "checkpoint": _checkpoint, "flat": _flat, "command": _elsewhere}
)
"""The reader of each kind of file, by ``Declared.weights``."""


def weights_in(run: RunDir, trained: Tensors) -> Iterator[Tensors]:
    """The weights in the files of a run; ``trained``: the parameters that it trains, as they began.

    A file that does not exist or is damaged has none: nobody goes on from it.
    """
    for declared in reversed(RUN):
        if declared.weights is not None:
            for path in sorted(run.path.glob(declared.pattern.removesuffix("*"))):
                with suppress(OSError, ValueError, KeyError):
                    yield from READERS[declared.weights](path, trained)


class WeightsOfRun:
    """Keeps the list of the weights that a run has written; ``plan`` has its initial model."""

    def __init__(self, plan: Base, run: RunDir) -> None:
        self._plan, self._run = plan, run
        self._listed: set[tuple[str, str]] = set()
        self._next = time.monotonic() + SECONDS

    def now_and_then(self) -> None:
        """``remember``, unless the last time was a short while ago."""
        if (began := time.monotonic()) >= self._next:
            self.remember()
            took = time.monotonic() - began
            self._next = began + max(SECONDS, RARELY * took)

    def remember(self) -> None:
        """List the weights in the files, for each the largest tensors that training has moved.

        Weights of files that were replaced leave the list.
        """
        if self._plan.settings.public_rows is not None:
            return
        initial = self._plan.initial.model()
        now = {
            (digest.hex(), str(self._run.path))
            for tensors in weights_in(self._run, trainable(initial))
            for digest in largest_moved(tensors, initial.state_dict())
        }
        WEIGHTS.remember(sorted(now), instead_of=self._listed - now)
        self._listed = now


def remember_merged(run: RunDir, tensors: Tensors, factors: Tensors) -> None:
    """Keep digests of weights into which the ``factors`` of a run's model were merged."""
    WEIGHTS.remember((digest.hex(), str(run.path)) for digest in largest_moved(tensors, factors))


def largest_moved(tensors: Tensors, start: Tensors) -> list[bytes]:
    """Digests of the largest tensors that are not among those of the ``start``.

    Of numbers in half precision as well.
    """
    by_size = sorted(tensors, key=lambda name: -tensors[name].numel())
    kept = []
    for each in (1, 2):  # digests of a tensor: of its numbers, and of two forms of rounded ones
        digests_of_form = digests_of if each == 1 else _rounded
        digests, before = digests_of_form(tensors), digests_of_form(start)
        known = set(chain.from_iterable(before.values()))
        moved = [d for name in by_size for d in digests.get(name, ()) if d not in known]
        kept += [d for d in moved if len(d) == DIGEST_BYTES][: each * MAX_NOTED_PARAMETERS]
    return kept


def _rounded(tensors: Tensors) -> dict[str, tuple[bytes, ...]]:
    return rounded_digests(tensors, samples_of(tensors))
