"""Which recorded updates are attacked, and the steps that images and texts share."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from fedlsg.attacks.guess import DoesNotApply, Guess
from fedlsg.attacks.inversion.matching import Progress
from fedlsg.attacks.membership.matched_filter import closed_form_tpr
from fedlsg.attacks.observation import Observation, ThreatModel
from fedlsg.randomness import public_generator
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.truth import Truth, batch_sizes, truth_of
from simulations.report.terminal import Tick

FPR = 0.01


class Named(Protocol):
    """An attack of a catalogue."""

    @property
    def name(self) -> str: ...


A = TypeVar("A", bound=Named)


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


def pick(record: Record, threat: ThreatModel, *, batches: Sequence[int], examples: int) -> list[Target]:
    """The first recorded updates of these batch sizes, about ``examples`` examples of each size.

    Raises ValueError if no update has such a size.
    """
    whole = threat.view == "aggregate"
    sizes = {(number, client): n for number, of in batch_sizes(record).items() for client, n in of.items()}
    if whole:
        rounds = sorted({number for number, _ in sizes})
        sizes = {(number, -1): sum(n for (of, _), n in sizes.items() if of == number) for number in rounds}
    found: list[Target] = []
    for batch in batches:
        fitting = [place for place, size in sorted(sizes.items()) if size == batch]
        for number, client in fitting[: max(1, round(examples / batch))]:
            seen = record.pick(number, threat)[0] if whole else record.observation(number, client)
            found.append(Target(seen=seen, truth=truth_of(record, seen)))
    if not found:
        there = ", ".join(map(str, sorted(set(sizes.values()))))
        raise ValueError(
            f"no recorded update holds {' or '.join(map(str, batches))} examples, there are updates of {there}: choose "
            f"--batch among them, or record a run with -c batch_size={batches[0]}"
        )
    return found


def attempts(
    chosen: Sequence[A],
    run: Callable[[A, torch.Generator, Progress], Guess],
    *,
    number: int,
    of: int,
    seed: int,
    refused: dict[str, str],
    tick: Tick,
) -> Iterator[tuple[A, Guess, float]]:
    """Run every attack that applies on update ``number`` of ``of``: (attack, guess, seconds).

    ``refused`` gets the reasons of the others by name.
    """
    for position, attack in enumerate(chosen):
        done, part = (number + position / len(chosen)) / of, 1 / len(chosen) / of
        name = f"update {number + 1} of {of}, {attack.name}"

        def progress(
            step: int, total: int, text: str, done: float = done, part: float = part, name: str = name
        ) -> None:
            tick(done + part * step / max(total, 1), f"{name}: {text}")

        tick(done, name)
        started = time.monotonic()
        try:
            guess = run(attack, public_generator(seed, "attack", number, attack.name), progress)
        except DoesNotApply as error:
            refused[attack.name] = str(error)
            continue
        yield attack, guess, time.monotonic() - started
