"""What client-level privacy promises, as functions that return what is wrong: nothing, where all is
well.

Clients of a case with data of their own, some of them hostile, take three plain local steps. The
functions are looked up in the package, so that a test can plant a mistake there.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

import fedlsg.training.client_level
from fedlsg.method import LocalTraining, client_step
from fedlsg.randomness import SecretStream, reproducible_stream
from tests.noise import no_noise
from tests.strategies.contract import FALSE_ALARM, Data, Subject, data_set, plausible, weighted_loss

CLIENTS = 6
BATCH = 4.0
LOCAL = LocalTraining(
    steps=3, learning_rate=0.5, momentum=0.5, expected_batch=BATCH, microbatch_size=3
)
assert FALSE_ALARM < 1e-6


def update(s: Subject, data: Data, seed: int) -> Tensor:
    """What a client sends to a server that adds the noise."""
    plain = replace(s.mechanism, kind="none")
    return client_step(
        s.model,
        data.batch,
        weighted_loss,
        frame=s.derived,
        mechanism=plain,
        local=LOCAL,
        num_examples=len(data.inputs),
        sampler=reproducible_stream(seed),
        noise=reproducible_stream(seed),
        charge=lambda: None,
    )


def updates(s: Subject, seed: int) -> list[Tensor]:
    """Of clients whose losses are scaled by 1e-8 to 50, and of one with an input that is no
    number.
    """
    return [
        update(s, client_data(100 * seed + client, hostile=not client), client)
        for client in range(CLIENTS)
    ]


def client_data(seed: int, *, hostile: bool) -> Data:
    """A data set of the contract; unless hostile, numbers that three steps do not drive to
    infinity.
    """
    data = data_set(seed)
    if hostile:
        return data
    classes, scales = data.targets.nan_to_num().unbind(1)
    return replace(
        data.without(len(scales) - 1), targets=torch.stack([classes, scales.clamp(-50, 50)], 1)[:-1]
    )


def released(s: Subject, some: Sequence[Tensor], noise: SecretStream | None = None) -> Tensor:
    """What the server releases of these updates; without noise unless a stream is given."""
    with nullcontext() if noise else no_noise():
        return fedlsg.training.client_level.release_round(
            some,
            frame=s.frame,
            mechanism=s.mechanism,
            expected_batch=BATCH,
            noise=noise or reproducible_stream(0),
        )[0]


def sensitivity_defects(s: Subject, seeds: range = range(2)) -> list[str]:
    """What is wrong with the claim that one client moves the sum by ``mechanism.sensitivity`` at
    most.
    """
    claimed, moved = s.mechanism.sensitivity(len(s.frame.blocks)), [0.0]
    for seed in seeds:
        some = updates(s, seed)
        whole = released(s, some)
        moved += [
            float((whole - released(s, some[:i] + some[i + 1 :])).norm()) for i in range(CLIENTS)
        ]
    found = []
    if not max(moved) <= claimed * (1 + 1e-9):
        found.append(f"one client moved the sum by {max(moved):.3g}, claimed is {claimed:.3g}")
    if s.mechanism.clip == "joint" and not max(moved) > 0.8 * claimed:
        found.append("no client came near the claim: the check is empty")
    return found


def noise_defects(s: Subject, draws: int = 40) -> list[str]:
    """What is wrong with the noise of a round without any client."""
    rounds = torch.stack([released(s, [], reproducible_stream(i)) for i in range(draws)])
    rounds = rounds / (s.mechanism.noise_multiplier * s.mechanism.clip_norm)
    found = []
    if rounds.shape[1] != s.frame.kept or not plausible(rounds.square().sum(), rounds.numel()):
        found.append(f"the variance is {float(rounds.square().mean()):.3f}, not 1")
    if not plausible((rounds.sum(0).square() / draws).sum(), s.frame.kept):
        found.append("the noise of different rounds is not independent")
    return found
