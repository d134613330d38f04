"""Which recorded updates are attacked, the batches behind them, and the attempts of all attacks on one update.

The batches (``Truth``) are for scoring attacks and for what a threat model grants, never for attacking.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.attacks.membership.matched_filter import closed_form_tpr
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation, ThreatModel
from fedlsg.randomness import public_generator
from simulations.attack.recorded.observations import Record
from simulations.report.progress import Tick
from simulations.rundir.files import sealed
from simulations.workloads.base.workload import Inputs

FPR = 0.01
P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is attacked.

    batches: sizes of the updates that are attacked; examples: about how many of each size. attacks: names with commas;
    None: the strongest that fit, with their naive forms if ``naive``. seconds: of one attack on one update. seed: of
    the starting points. device: of the matching attacks; closed forms are computed on the CPU.
    """

    batches: tuple[int, ...]
    examples: int
    attacks: str | None
    naive: bool
    seconds: float
    seed: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or self.examples < 1 or not self.seconds > 0:
            raise ValueError(
                f"expected --batch {','.join(map(str, self.batches))} of 1 or more, --images {self.examples} >= 1 and "
                f"--seconds {self.seconds} > 0"
            )


@dataclass(frozen=True, kw_only=True)
class Attack(Generic[P]):
    """An attack of ``fedlsg attack``: ``run(seen, knowledge, prior, generator, seconds, progress, device)`` gives a
    guess, on the CPU.

    Raises DoesNotApply where there is nothing for it to work on.
    """

    name: str
    run: Callable[..., Guess]


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The examples of one observation: rows of the training split, their inputs and labels."""

    rows: Int64[Tensor, " batch"]
    inputs: Inputs
    labels: Int64[Tensor, " batch"]

    def grant(self, threat: ThreatModel) -> Knowledge:
        """What the threat model lets the adversary know; labels are sorted, so that no order leaks."""
        if threat.labels == "known":
            return Knowledge(labels=self.labels.sort().values, examples=len(self.labels))
        return Knowledge(examples=len(self.labels) if threat.examples == "known" else None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """One update that is attacked, with its truth for scoring."""

    seen: Observation
    truth: Truth


def membership_of(seen: Observation) -> float | None:
    """The matched filter's TPR at 1 % FPR on this payload, from sigma alone; None without noise."""
    if not seen.mechanism.private or seen.local.steps > 1:
        return None
    return closed_form_tpr(FPR, seen.noise_std / seen.mechanism.sensitivity(len(seen.frame.blocks)))


def pick(record: Record, threat: ThreatModel, options: Options) -> list[Target]:
    """The first recorded updates of the wanted batch sizes, about as many examples of each size as wanted.

    Raises ValueError if no update has such a size.
    """
    whole = threat.view == "aggregate"
    sizes = {(number, client): n for number, of in batch_sizes(record).items() for client, n in of.items()}
    if whole:
        rounds = sorted({number for number, _ in sizes})
        sizes = {(number, -1): sum(n for (of, _), n in sizes.items() if of == number) for number in rounds}
    found: list[Target] = []
    for batch in options.batches:
        fitting = [place for place, size in sorted(sizes.items()) if size == batch]
        for number, client in fitting[: max(1, round(options.examples / batch))]:
            seen = record.pick(number, threat)[0] if whole else record.observation(number, client)
            found.append(Target(seen=seen, truth=truth_of(record, seen)))
    if not found:
        wanted, there = " or ".join(map(str, options.batches)), ", ".join(map(str, sorted(set(sizes.values()))))
        raise ValueError(
            f"no recorded {'sum' if whole else 'update'} holds {wanted} examples, there are "
            f"{'sums' if whole else 'updates'} of {there}: choose --batch among them"
            + ("" if whole else f", or record a run with -c batch_size={options.batches[0]}")
        )
    return found


def truth_of(record: Record, seen: Observation) -> Truth:
    """The batches of an observation's clients, one after the other.

    Raises ValueError if the run kept none: then nothing can be scored.
    """
    rows = torch.cat([_rows(record, seen.round, client) for client in seen.clients])
    inputs, labels = record.base.workload.train.batch(rows)
    return Truth(rows=rows, inputs=inputs, labels=labels)


def batch_sizes(record: Record) -> dict[int, dict[int, int]]:
    """Examples in each recorded payload, by round and client."""
    return {
        round: {client: len(_rows(record, round, client)) for client in clients}
        for round, clients in record.payloads.items()
    }


def _rows(record: Record, round: int, client: int) -> Int64[Tensor, " batch"]:
    path = record.run.path / "updates-truth" / f"round-{round:06d}" / f"client-{client:06d}.npy"
    try:
        rows = torch.from_numpy(sealed.load_array(path))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: without the batches an attack cannot be scored") from None
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if rows.is_floating_point() or rows.ndim != 1 or not bool(torch.isin(rows, record.base.parts[client]).all()):
        raise ValueError(f"{path} names rows that client {client} does not hold: it belongs to other data or settings")
    return rows.long()


def attempts(
    attacks: Sequence[Attack[P]],
    target: Target,
    known: Knowledge,
    prior: P,
    options: Options,
    *,
    number: int,
    of: int,
    refused: dict[str, str],
    tick: Tick,
) -> Iterator[tuple[str, Guess, float]]:
    """Run every attack that applies on update ``number`` of ``of``: (its name, guess, seconds).

    ``refused`` gets the reasons of the others by name.
    """
    for position, attack in enumerate(attacks):
        done, part = (number + position / len(attacks)) / of, 1 / len(attacks) / of
        name = f"update {number + 1} of {of}, {attack.name}"

        def progress(
            step: int, total: int, text: str, done: float = done, part: float = part, name: str = name
        ) -> None:
            tick(done + part * step / max(total, 1), f"{name}: {text}")

        tick(done, name)
        started = time.monotonic()
        generator = public_generator(options.seed, "attack", number, attack.name)
        try:
            guess = attack.run(target.seen, known, prior, generator, options.seconds, progress, options.device)
        except DoesNotApply as error:
            refused[attack.name] = str(error)
            continue
        yield attack.name, guess, time.monotonic() - started
