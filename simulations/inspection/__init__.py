"""``fedlsg inspect``: measurements on the training data of a simulation. Nothing here is private.

This file has the subject of an inspection: a model at W_t with its W_0, the frame of its next
round, and examples of the training data. It reads a run directory and writes nothing into it: no
ledger is opened, no checkpoint saved.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fedlsg.carriers import find_output_layer
from fedlsg.frame import EVERYTHING, Coordinates, Frame
from fedlsg.gradients import call, trainable
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.method import Method
from fedlsg.randomness import own_draws, public_generator, seed_draws
from fedlsg.simulations import workloads
from fedlsg.simulations.engines.watchers import scratch
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.earlier_runs.continuity import check_own_code
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.rule_checker import refuse_other_units
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.storage.results import refuse_own_noise
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import Progress, silent, to_device
from fedlsg.simulations.workloads.base.split import Inputs
from fedlsg.simulations.workloads.images.augment import draw_round, drawn_copies
from fedlsg.state import ServerState
from fedlsg.training import per_unit

Batch = tuple[Inputs, Tensor]
"""Inputs and targets."""
Rows = Int64[Tensor, " n"]
"""Positions of examples in the training split."""
Weights = Mapping[str, Tensor]
"""Trainable parameters, or their gradients, by name."""
PASS_BYTES = 2**28
"""Bytes of per-example gradients of one microbatch at most; one example may have more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A prepared run at one moment.

    base: settings, data, model and mechanism.
    state: of the server, at W_t.
    start: W_0 of every trainable parameter.
    run: its directory; None for settings.
    """

    base: Base
    state: ServerState
    start: Weights
    run: Path | None

    @property
    def model(self) -> nn.Module:
        """The model at W_t."""
        return self.state.model

    @property
    def weights(self) -> Weights:
        """W_t by name."""
        return self.state.public.parameters

    @property
    def moved(self) -> bool:
        """Whether W_t differs from W_0."""
        return any(not torch.equal(W, self.start[name]) for name, W in self.weights.items())

    @property
    def round(self) -> int:
        """The round whose frame is inspected: the next one, or the last one of a finished run."""
        return min(self.state.round + 1, self.base.schedule.rounds)

    @cached_property  # no round is trained meanwhile
    def layers(self) -> tuple[str, ...]:
        """Names of the trainable weights of Linear and Conv2d layers, in model order."""
        matrices = {
            f"{name}.weight" if name else "weight"
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Linear | nn.Conv2d)
        }
        return tuple(name for name in self.weights if name in matrices)

    @cached_property  # no round is trained meanwhile
    def frame(self) -> Frame:
        """The frame that the server would announce in ``round``."""
        return self.state.frame(self.round)

    def coordinates(self, name: str) -> Coordinates:
        """The coordinates of a parameter in that frame."""
        return next(part for part in self.frame.coordinates if part.name == name)

    def frame_of(self, method: Method) -> Frame:
        """The frame of the same round under another mask: the carriers are the same."""
        public = self.state.public
        public = replace(public, method=method, initial={**self.start, **public.initial})
        return public.frame(
            self.round, updates=self.state.updates, basis=self.state.basis_of(self.round)
        )

    @property
    def classifier(self) -> str:
        """Name of the output layer's weight."""
        return find_output_layer(self.model, self.state.public.classifier) + ".weight"

    @property
    def copies(self) -> int:
        """Augmented copies of each example in a batch."""
        return 1 if self.base.rows.augment is None else self.base.local.multiplicity

    def rows(self, examples: int) -> Rows:
        """At most ``examples`` random rows of the training split, by the public seed."""
        total = len(self.base.workload.train)
        draw = torch.randperm(total, generator=public_generator(self.state.seed, "inspect"))
        return self.base.workload.train.order(draw[: min(examples, total)].sort().values)

    def batches(self, rows: Rows, values: int = 1) -> Iterator[Batch]:
        """Inputs and targets of ``rows`` in microbatches, prepared and augmented as on a client.

        values: numbers of an example's gradient, by which ``PASS_BYTES`` limits the microbatch.

        Every pass has the same dropout, and torch's own generator is as before afterwards.
        """
        fits = max(1, PASS_BYTES // (4 * values))
        size = max(1, min(self.base.local.microbatch_size, fits) // self.copies)
        train, augment, changes = self.base.workload.train, self.base.rows.augment, None
        if augment is not None:
            generator = public_generator(self.state.seed, "inspect", "augment")
            changes = draw_round(augment, len(train), self.copies, generator)
        with own_draws(self.base.device):
            seed_draws(
                public_generator(self.state.seed, "inspect", "dropout").initial_seed(),
                self.base.device,
            )
            for run in rows.split(size):
                inputs, targets = train.batch(run)
                if augment is not None and changes is not None:
                    inputs, targets = drawn_copies(inputs, targets, changes[run], augment)
                yield to_device(inputs, self.base.device), targets.to(self.base.device)

    @contextmanager
    def at(self, weights: Weights) -> Iterator[None]:
        """Inside, the model has these weights."""
        now = {name: W.clone() for name, W in self.weights.items()}
        _write(self.model, weights)
        try:
            yield
        finally:
            _write(self.model, now)


def subject_of_run(
    path: str, *, device: Device = "auto", progress: Progress = silent, clients: bool = False
) -> Subject:
    """The subject at the last checkpoint of a run directory, on ``device``.

    clients: whether the unit of the run may be a client.

    Raises ValueError for a folder that is no run, or a checkpoint with other parameters.
    """
    directory = RunDir.open(path)
    refuse_own_noise(directory)
    settings = replace(directory.read_config(), device=device)
    saved = directory.load_checkpoint() if directory.checkpoint.exists() else None
    return _subject(settings, directory.path, saved, progress, clients=clients)


def subject_of_settings(
    given: Mapping[str, object], *, progress: Progress = silent, clients: bool = False
) -> Subject:
    """The subject of settings, as ``fedlsg run`` takes them, at the initial weights.

    clients: whether the unit may be a client.
    """
    return _subject(resolve(given), None, None, progress, clients=clients)


def refuse_settings(run: str | None, given: Mapping[str, object]) -> None:
    """Raise ValueError for settings next to a run, and for the name of a workload as the run."""
    if run is not None and run in workloads.names() and not Path(run).exists():
        raise ValueError(f"{run} is a workload and no run directory: expected --workload {run}")
    if run is not None and given:
        raise ValueError(
            f"a run has its settings; leave out {', '.join(sorted(given))}, or the run"
        )


def _subject(
    settings: Settings,
    run: Path | None,
    saved: dict[str, Any] | None,
    progress: Progress,
    *,
    clients: bool,
) -> Subject:
    if not clients:
        refuse_other_units(settings, "inspection")
    base = prepare(settings, progress=progress)
    if run is not None:
        check_own_code(base, RunDir(run))
    else:
        count_blocks(base)  # what a run checks of its model before it starts
    public = base.initial.public()
    start = {name: p.clone() for name, p in public.parameters.items()}
    state = base.initial.server(public)
    if saved is not None:
        state.load_state_dict(saved["server"])
    return Subject(base=base, state=state, start=start, run=run)


@contextmanager
def run_in_scratch(
    plan: Plan, on_round: Callable[[Row], None]
) -> Iterator[tuple[RunDir, dict[str, Any]]]:
    """Run a plan on the local engine in a temporary folder; yields the folder and the summary."""
    from fedlsg.simulations.client.process_state import serving
    from fedlsg.simulations.engines import local

    with scratch() as folder:
        directory = RunDir(folder)
        plan = replace(plan, settings=replace(plan.settings, run_dir=str(folder)))
        directory.write_config(plan.settings)
        with serving(plan):
            summary = local.run(plan, directory, on_round=on_round, page=False)
        yield directory, summary


def _write(model: nn.Module, weights: Weights) -> None:
    """Give the model these weights."""
    with torch.no_grad():
        for name, p in trainable(model).items():
            p.copy_(weights[name])


def batch_gradient(subject: Subject, rows: Rows) -> Weights:
    """Mean gradient of every trainable parameter over the examples, without clip and noise."""
    parameters = trainable(subject.model)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for inputs, targets in subject.batches(rows):
        outputs = partial(call, subject.model, inputs)
        losses = subject.base.local.precision.losses(
            outputs, subject.base.workload.loss, targets, targets
        )
        gradients = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        for name, dW in zip(parameters, gradients, strict=True):
            if dW is not None:
                total[name] += dW / (len(rows) * subject.copies)
    return total


def unmasked(frame: Frame) -> Frame:
    """The same coordinates, all kept."""
    return replace(frame, blocks=tuple(replace(block, keep=EVERYTHING) for block in frame.blocks))


def passes(
    subject: Subject, frame: Frame, rows: Rows
) -> Iterator[list[Float[Tensor, "batch kept"]]]:
    """The gradients that a client clips, by microbatch: as in ``client_step``."""
    losses, precision = subject.base.workload.loss, subject.base.local.precision
    for inputs, targets in subject.batches(rows, frame.kept):
        gradients = per_example_gradients(
            subject.model, losses, inputs, targets, frame, precision=precision
        )
        yield per_unit(gradients, frame, subject.copies)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Final accuracies of one run with and without noise and clip.

    with_noise: with clip and noise.
    clip_only: with the clip alone; None if training diverged.
    neither: without clip and noise; None if training diverged or the model only guesses, because
        the learning rate is too large for longer gradients.
    standard_error: of one accuracy, from the size of the test split; None if that is not known.
    rho: norm of a step's noise over the clip norm; None if it is not on record.
    """

    with_noise: float
    clip_only: float | None
    neither: float | None
    standard_error: float | None
    rho: float | None = None

    @property
    def noise(self) -> float | None:
        """Accuracy that the noise costs; negative if it helps, None if it is not known."""
        return None if self.clip_only is None else self.clip_only - self.with_noise

    @property
    def clip(self) -> float | None:
        """Accuracy that the clip costs at the run's learning rate; None if it is not known."""
        if self.neither is None or self.clip_only is None:
            return None
        return self.neither - self.clip_only
