"""How far one example moves a client's clipped sum, through the library's own step, in the users'
precision.

The sum is recorded before the noise. Two data sets that differ in one example go through
``client_step`` with the
batches and groups of simulations, at sampling rate 1, so that both draw the same batch. Dropout is
    0 in every model.
    moved        |S(D) - S(D without i)| / C, at most 1 by the guarantee of the clip
    neighbours   |S(D) - S(D without i) - c_i| / C with c_i the clipped gradient of i: how i changes
                 all others
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedlsg.training.client_round
from fedlsg.frame import Frame
from fedlsg.gradients import GhostGradients, LossFunction, Precision
from fedlsg.method import Schedule
from fedlsg.privacy import Mechanism, clipped_sum
from fedlsg.randomness import SecretStream, reproducible_stream
from fedlsg.simulations.client.drawing import batches, groups
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.settings.resolve import build_method, fill
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.workloads import LoadedWorkload
from fedlsg.state import PublicState
from fedlsg.training import Batch, Groups, LocalTraining, Positions, together

BOUND = 1e-4
"""Share of C by which rounding may move the sum on top of what is accounted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model with its frame and settings, and the batches of any selection of its data."""

    model: nn.Module
    frame: Frame
    loss_fn: LossFunction
    mechanism: Mechanism
    local: LocalTraining
    data: Callable[[Positions], tuple[Batch, Groups]]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Distances in units of the sensitivity that is accounted; see the module's header."""

    moved: float
    neighbours: float


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of simulations, one an example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def subject(
    workload: LoadedWorkload,
    method: str,
    *,
    model: str | None = None,
    precision: Precision,
    clip_norm: float,
    **settings: object,
) -> Subject:
    """A client of a simulation that holds all of ``workload``'s training split."""
    given = {
        "workload": workload.name,
        "method": method,
        "model": model,
        "clients": 1,
        "noise_multiplier": 1.0,
    }
    known = {name: value for name, value in {**given, **settings}.items() if value is not None}
    s = fill(
        from_mapping({"sample_rate": 1.0, "rounds": 1, "clip_norm": clip_norm, **known}), workload
    )
    assert s.microbatch_size is not None
    local = LocalTraining(
        expected_batch=float(len(workload.train)),
        microbatch_size=s.microbatch_size,
        multiplicity=s.multiplicity or 1,
        precision=precision,
    )
    base = Base(
        settings=s,
        workload=workload,
        parts=[torch.arange(len(workload.train))],
        method=build_method(s),
        schedule=Schedule(rounds=1),
        local=local,
    )
    public = PublicState.start(
        base.initial.model(), base.method, base.schedule, seed=0, classifier=workload.classifier
    )
    frame = public.frame(1, updates=0)

    def data(rows: Positions) -> tuple[Batch, Groups]:
        own = replace(base, parts=[rows])
        return batches(own, 0, 1, []), groups(own, 0)

    mechanism = replace(base.method.mechanism, kind="clip-only")
    return Subject(
        model=public.model, frame=frame, loss_fn=loss, mechanism=mechanism, local=local, data=data
    )


def of_tensors(
    model: nn.Module,
    frame: Frame,
    loss_fn: LossFunction,
    inputs: Tensor,
    targets: Tensor,
    **changes: object,
) -> Subject:
    """A subject of the library's own step, for models of a user's own."""

    def data(rows: Positions) -> tuple[Batch, Groups]:
        return lambda positions: (inputs[rows[positions]], targets[rows[positions]]), together

    local = replace(LocalTraining(expected_batch=float(len(inputs))), **changes)  # type: ignore[arg-type]
    mechanism = Mechanism(kind="clip-only")
    return Subject(
        model=model, frame=frame, loss_fn=loss_fn, mechanism=mechanism, local=local, data=data
    )


def move(subject: Subject, rows: Sequence[int], leaves: int) -> Moved:
    """How far the sum moves if the example at place ``leaves`` of ``rows`` is removed."""
    whole = torch.tensor(rows)
    total, own = _sum(subject, whole, leaves)
    rest, _ = _sum(subject, torch.cat([whole[:leaves], whole[leaves + 1 :]]), None)
    unit = subject.mechanism.sensitivity(len(subject.frame.blocks))
    assert own is not None
    return Moved(
        moved=float((total - rest).norm()) / unit,
        neighbours=float((total - rest - own).norm()) / unit,
    )


def _sum(subject: Subject, rows: Tensor, watched: int | None) -> tuple[Tensor, Tensor | None]:
    """The sum before the noise, in float64, and the clipped gradient of the example at the place
    ``watched``.
    """
    batch, of_shape = subject.data(rows)
    with caught(watched) as (totals, own, positions):

        def draw(some: Positions) -> tuple[object, Tensor]:
            positions.append(some.tolist())
            return batch(some)

        fedlsg.training.client_round.client_step(
            subject.model,
            draw,
            subject.loss_fn,
            frame=subject.frame,
            mechanism=subject.mechanism,  # type: ignore[arg-type]
            local=subject.local,
            num_examples=len(rows),
            sampler=reproducible_stream(0),
            noise=reproducible_stream(1),
            charge=lambda: None,
            groups=of_shape,
        )
    return totals[0].double(), own[0] if own else None


@contextmanager
def caught(watched: int | None) -> Iterator[tuple[list[Tensor], list[Tensor], list[list[int]]]]:
    """A context that records the last sum before the noise, and the clipped gradient of one
    position. The third list takes the positions of each batch that is made: their gradients are
    summed in the same order, but several batches may be made before the first sum.
    """
    totals: list[Tensor] = []
    own: list[Tensor] = []
    positions: list[list[int]] = []
    add_noise = fedlsg.training.client_round.add_noise
    summed = fedlsg.training.client_round.clipped_sum

    def keep(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        totals.append(total.clone())
        return add_noise(total, mechanism, noise)

    def watch(
        gradients: Sequence[Tensor | GhostGradients], mechanism: Mechanism, **options: bool
    ) -> Tensor:
        rows = positions.pop(0)
        if watched in rows:
            k = rows.index(watched)
            one = [
                g.part(k, k + 1) if isinstance(g, GhostGradients) else g[k : k + 1]
                for g in gradients
            ]
            own.append(clipped_sum(one, mechanism, wide=True))
        return summed(gradients, mechanism, **options)

    with (
        patch("fedlsg.training.client_round.add_noise", keep),
        patch("fedlsg.training.client_round.clipped_sum", watch),
    ):
        yield totals, own, positions
