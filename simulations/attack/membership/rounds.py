"""Membership in one round: the matched filter's closed form at the run's sigma, and the same game
played.

This attacker differs from those on the trained model: it sees one round as its reader does, and
knows everybody else who takes part. What it sees comes from the shipped path of the run's trust
mode and unit (``audit.shipped``).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.audit.setting import Setting
from fedlsg.attacks.audit.shipped import output
from fedlsg.attacks.membership import Membership, closed_form_tpr, play, rates
from fedlsg.attacks.metrics import LOW_RATES
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.method import client_step
from fedlsg.privacy import clipped_sum
from fedlsg.randomness import SecretStream, own_draws, reproducible_stream
from fedlsg.simulations.client.drawing import batches, groups
from fedlsg.simulations.plan.advice import stated_of
from fedlsg.simulations.plan.plan import Plan
from fedlsg.simulations.workloads import to_device
from fedlsg.training import per_unit

Scores = Float[np.ndarray, " trials"]
COMPANY = 32
TRIALS, FEWEST_TRIALS = 2000, 100
WORK = 2 * 10**8
"""Most noise values: few trials on large payloads, none on the largest."""
CLIPS = 2 * 10**4
"""Most units and clients that are clipped: fewer trials where a sum has many."""


@dataclass(frozen=True, kw_only=True)
class PerRound:
    """At one false positive rate: the closed form for a unit that is clipped, and the measured
    rates.

    clipped: whether the unit that was played with is clipped, so that its own prediction is the
    closed form.
    """

    fpr: float
    sigma: float
    closed_form: float
    clipped: bool
    played: Membership | None


def per_round(plan: Plan, *, seed: int) -> list[PerRound]:
    """The game on the first round's frame at W_0; [] without a noise. One local step, in which all
    units take part.

    At example level the unit is an example of client 0 in a batch of its first. Of a sum it sees
    what the reader of the threat model does: that of the fewest clients, without the noise of those
    who read along.
    """
    mechanism = plan.terms[0].mechanism(plan.method.mechanism)
    if not mechanism.private:
        return []
    setting, units = _setting(plan), _units(plan, seed)
    blocks = len(setting.frame.blocks)
    sigma, length = mechanism.effective_noise_multiplier(blocks), mechanism.sensitivity(blocks)
    g, others = (
        clipped_sum([unit[:1] for unit in units], mechanism),
        clipped_sum([u[1:] for u in units], mechanism),
    )
    scores, std = _played(setting, units, g, others, sigma * length, seed), sigma * length
    return [
        PerRound(
            fpr=rate,
            sigma=sigma,
            closed_form=closed_form_tpr(rate, sigma),
            clipped=float(torch.cat([unit[0] for unit in units]).double().norm()) >= length,
            played=None if scores is None else rates(*scores, g, noise_std=std, fpr=rate),
        )
        for rate in LOW_RATES
    ]


def _played(
    setting: Setting, units: list[Tensor], g: Tensor, others: Tensor, noise_std: float, seed: int
) -> tuple[Scores, Scores] | None:
    """Scores with and without the unit; None where an output is too large for enough of them."""
    stated, frame = setting.stated, setting.frame
    weighted = not stated.whole  # an update is clipped as it was sent
    rows = torch.cat(
        [u / b.weight if weighted else u for u, b in zip(units, frame.blocks, strict=True)], dim=1
    )
    rows = rows.to(next(setting.model.parameters()).device)
    clips = stated.members + (len(rows) if stated.trust == "server" else 1)
    trials = min(TRIALS, WORK // (2 * frame.kept * stated.members), CLIPS // clips)
    if trials < FEWEST_TRIALS:
        return None
    return play(_outputs(setting, rows, seed), g, others, noise_std=noise_std, trials=trials)


def _outputs(setting: Setting, rows: Tensor, seed: int) -> Callable[[bool], Tensor]:
    """Fresh outputs with the unit of row 0, or without it."""
    count = [0]

    def payload(present: bool) -> Tensor:
        count[0] += 1

        def draw(purpose: str, client: int = 0) -> SecretStream:
            return reproducible_stream(
                seed, "membership", "matched filter", purpose, client, count[0]
            )

        return output(setting, rows if present else rows[1:], draw, round=1).values

    return payload


def _setting(plan: Plan) -> Setting:
    """The shipped path of a round in which every unit takes part once."""
    state, unit = plan.server_state(), plan.unit
    mechanism = plan.terms[0].mechanism(plan.method.mechanism)
    # nothing is claimed of this game
    stated = stated_of(plan, epsilon=1.0, delta=0.5, sample_rate=1.0, steps=1)
    return Setting(
        model=state.model,
        frame=state.frame(),
        mechanism=mechanism,
        local=replace(plan.local.single().at_rate(1.0), shuffled=0),
        rounds=1,
        stated=stated,
        sums=plan.sums,
        unit=replace(unit, sample_rate=1.0),
    )


def _units(plan: Plan, seed: int) -> list[Tensor]:
    """What is clipped of each unit, by blocks, the longest one first: gradients of examples, or
    updates of clients.
    """
    if plan.unit.whole:
        return first_updates(plan, COMPANY, seed)[0]
    state = plan.server_state()
    frame, device = state.frame(), plan.device
    inputs, labels = plan.workload.train.batch(plan.parts[0][:COMPANY])
    rows = per_example_gradients(
        state.model,
        plan.workload.loss,
        to_device(inputs, device),
        labels.to(device),
        frame,
        precision=plan.local.precision,
    )
    units = [unit.detach().cpu() for unit in per_unit(rows, frame, 1)]
    squares = torch.stack([unit.double().square().sum(1) for unit in units]).sum(0)
    order = squares.argsort(descending=True)
    return [unit[order] for unit in units]


def first_updates(plan: Plan, clients: int, seed: int) -> tuple[list[Tensor], int]:
    """The updates of some clients in the first round, a row each, by blocks; and the number of
    blocks.

    In the units of the clip: divided by the expected batch. The largest is first.
    """
    state = plan.server_state()
    frame, rows = state.frame(), []
    with own_draws(plan.device):
        for client in range(min(clients, len(plan.parts))):
            values = client_step(
                state.model,
                batches(plan, client, 1, []),
                plan.workload.loss,
                frame=frame,
                mechanism=replace(plan.method.mechanism, kind="none"),
                local=plan.local.at_rate(plan.terms[client].sample_rate),
                num_examples=len(plan.parts[client]),
                sampler=reproducible_stream(seed, "membership", "first round", client),
                noise=reproducible_stream(seed, "membership", "no noise"),
                charge=lambda: None,
                groups=groups(plan, client),
            )
            rows.append(values.detach().cpu() / plan.local.expected_batch)
    updates = torch.stack(rows)
    updates = updates[updates.double().norm(dim=1).argsort(descending=True)]
    return list(updates.split([block.kept for block in frame.blocks], dim=1)), len(frame.blocks)
