"""Weights of a run at the start of its rounds, and the moving average of the updates that led there. All public."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedlsg.gradients import trainable
from simulations.inspection.subject import Subject
from simulations.rundir.files import sealed
from simulations.rundir.updates import round_folder

DECAY = 0.9
"""Of the moving average: M <- DECAY M + W_(t+1) - W_t."""

Weights = Mapping[str, Tensor]


def rounds_of(subject: Subject, given: str) -> list[int]:
    """Rounds from a list with commas: numbers, or "last" for the one that comes next; ascending.

    Raises ValueError for anything else, and for a round whose weights are not on record.
    """
    last = subject.state.round + 1
    words = [word.strip() for word in given.split(",")]
    if not all(word == "last" or word.isdecimal() for word in words):
        raise ValueError(f"expected --energy as last, or rounds such as 1,20,last; got {given!r}")
    found = sorted({last if word == "last" else int(word) for word in words})
    for round in found:
        weights_at(subject, round)
    return found


def weights_at(subject: Subject, round: int) -> Weights:
    """W_t of every trainable parameter at the start of a round, from 1; without a record of the first and the last.

    Raises ValueError for a round that is not on record.
    """
    if round == subject.state.round + 1:
        return subject.weights
    if round == 1:
        return subject.start
    path = None if subject.run is None else round_folder(subject.run, round) / "weights.npy"
    if path is None or not path.exists() or round > subject.state.round:
        raise ValueError(
            f"--energy {round}: the weights of round {round} are not on record. Use --energy 1,last; rounds between "
            f"them, up to {subject.state.round}, need a run with --record-updates"
        )
    try:
        flat = torch.from_numpy(sealed.load_array(path))
        shapes = {name: p.shape for name, p in trainable(subject.model).items()}
        parts = flat.split([shape.numel() for shape in shapes.values()])
        return {n: p.reshape(s).to(subject.weights[n]) for (n, s), p in zip(shapes.items(), parts, strict=True)}
    except (OSError, ValueError, EOFError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot read the weights of round {round}: {error}") from None


def moving_averages(subject: Subject, rounds: Sequence[int]) -> dict[int, Weights | None]:
    """The moving average of all updates before each round; None for the first round, and without a record."""
    found: dict[int, Weights | None] = dict.fromkeys(rounds)
    total: dict[str, Tensor] = {}
    before = subject.start
    for round in range(2, max(rounds) + 1):
        try:
            now = weights_at(subject, round)
        except ValueError:
            return found
        total = {name: DECAY * total.get(name, 0.0) + W - before[name] for name, W in now.items()}
        before = now
        if round in found:
            found[round] = total
    return found
