"""Membership in one payload: the matched filter's closed form at the run's sigma, and the same game played.

This attacker differs from those on the trained model: it sees a client's payload of one round as it was sent, and
knows the rest of the batch.
"""

from dataclasses import dataclass, replace

import torch

from fedlsg.attacks.membership.matched_filter import Membership, closed_form_tpr, measure
from fedlsg.attacks.membership.roc import LOW_RATES
from fedlsg.gradients import per_example_gradients
from fedlsg.randomness import reproducible_stream
from fedlsg.training import per_unit
from simulations.attack.membership.units import first_updates
from simulations.attack.recorded.observations import cross_entropy
from simulations.plan.plan import Plan
from simulations.workloads import to_device

COMPANY = 32
TRIALS, FEWEST_TRIALS = 2000, 100
WORK = 2 * 10**8
"""Most noise values for one rate: few trials on large payloads, none on the largest."""


@dataclass(frozen=True, kw_only=True)
class PerRound:
    """At one false positive rate: the closed form for an example that is clipped, and the measured rates.

    clipped: whether the example that was played with is clipped, so that its own prediction is the closed form.
    """

    fpr: float
    sigma: float
    closed_form: float
    clipped: bool
    played: Membership | None


def per_round(plan: Plan, *, seed: int) -> list[PerRound]:
    """The game on the first round's frame at W_0, an example of client 0 in a batch of its first; [] without a noise.

    Under trust=aggregate the payload is the sum, whose noise is that of the claim.
    """
    mechanism = plan.terms[0].mechanism(plan.method.mechanism)
    if not mechanism.private:
        return []
    mechanism = replace(mechanism, noise_share=1.0)
    gradients, blocks = _gradients(plan, seed)
    sigma = mechanism.effective_noise_multiplier(blocks)
    kept = sum(block.shape[1] for block in gradients)
    trials = min(TRIALS, WORK // (2 * kept))
    found = []
    for rate in LOW_RATES:
        noise = reproducible_stream(seed, "membership", "matched filter", str(rate))
        enough = trials >= FEWEST_TRIALS
        found.append(
            PerRound(
                fpr=rate,
                sigma=sigma,
                closed_form=closed_form_tpr(rate, sigma),
                clipped=float(torch.cat([block[0] for block in gradients]).double().norm())
                >= mechanism.sensitivity(blocks),
                played=measure(gradients, mechanism, noise, fpr=rate, trials=trials) if enough else None,
            )
        )
    return found


def _gradients(plan: Plan, seed: int) -> tuple[list[torch.Tensor], int]:
    """Per-example gradients of each block, the longest example first, and the number of blocks; updates of clients."""
    if plan.client_unit is not None:
        return first_updates(plan, COMPANY, seed)
    state = plan.server_state()
    frame, device = state.frame(), plan.device
    inputs, labels = plan.workload.train.batch(plan.parts[0][:COMPANY])
    rows = per_example_gradients(
        state.model, cross_entropy, to_device(inputs, device), labels.to(device), frame, precision=plan.local.precision
    )
    units = [unit.detach().cpu() for unit in per_unit(rows, frame, 1)]
    squares = torch.stack([unit.double().square().sum(1) for unit in units]).sum(0)
    order = squares.argsort(descending=True)
    return [unit[order] for unit in units], len(frame.blocks)
