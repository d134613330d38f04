"""What membership is asked of: one example, or under unit=client a client with all of its data.

A client is scored by the mean confidence over its examples. Its update, as the server clips it, takes the place of an
example's gradient in the matched filter.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from fedlsg.method import client_step
from fedlsg.randomness import own_draws, reproducible_stream
from simulations.client.train import batches, groups
from simulations.plan.plan import Plan


def count(plan: Plan) -> int:
    """How many units there are: training examples, or clients."""
    return len(plan.workload.train) if plan.client_unit is None else len(plan.parts)


def check(plan: Plan) -> None:
    """Raise ValueError for client-level settings whose shadows cannot leave clients out."""
    if plan.client_unit is not None and not plan.client_unit.at_server:
        raise ValueError(
            f"--membership at client level leaves out half of the clients, and trust={plan.settings.trust} fixes who "
            "takes part: attack a run with trust=server"
        )


def without_clients(plan: Plan, members: Bool[Tensor, " clients"]) -> Plan:
    """The plan without the other clients: the same rate, noise and divisor, which are public constants."""
    kept = members.nonzero().squeeze(1).tolist()
    return replace(
        plan, parts=[plan.parts[client] for client in kept], terms=tuple(plan.terms[client] for client in kept)
    )


def first_updates(plan: Plan, clients: int, seed: int) -> tuple[list[Tensor], int]:
    """The updates of some clients in the first round, a row each, by blocks; and the number of blocks.

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
