"""The choices of a federation whose clients want different epsilons, compared with each other.

    everyone at the smallest    all clients take part, at the smallest epsilon and delta
    the strictest left out      the others, at the smallest epsilon and delta among them
    each its own                all clients, weighted as the run does
    each its own, by noise      all clients, weighted by 1 / sigma_k^2, unless the run does that

The strictest clients have the smallest epsilon; if all have one epsilon, the smallest delta.

noise: deviation of the noise on a coordinate of the mean gradient, over the clip norm, in a round
in which all of these clients take part: sqrt(sum_k w_k^2 sigma_k^2) / sum_k w_k q_k N_k.

The noise does not tell the value of the strictest clients' data: if only they have a class, leaving
them out loses it, and a small weight nearly does. So the largest share of a client is given, too:
noise averages out over rounds, and a share does not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedlsg.simulations.planning.client_noise import (
    client_terms,
    counts_by_noise,
    weighted_by_noise,
)
from fedlsg.simulations.planning.plan import Plan
from fedlsg.state import ClientTerms

HALF = 0.5
"""A client with a larger share of the weight decides what the model is fitted to."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of the choices.

    name: of the choice.
    clients: how many take part.
    epsilon, most: the smallest and the largest epsilon of these clients.
    delta, most_delta: the smallest and the largest delta.
    noise: see the top of this file.
    share: of the whole weight that the client with the largest one has.
    """

    name: str
    clients: int
    epsilon: float
    most: float
    delta: float
    most_delta: float
    noise: float
    share: float


def choices(plan: Plan) -> list[Choice]:
    """The choices of a plan whose clients have budgets of their own; none for another plan."""
    if not plan.clients.own_budgets or not plan.method.mechanism.private:
        return []
    epsilons = [epsilon for epsilon, _ in plan.clients.budgets if epsilon is not None]
    deltas = [delta for _, delta in plan.clients.budgets if delta is not None]
    strictness = epsilons if min(epsilons) < max(epsilons) else deltas
    everyone = range(len(epsilons))
    others = [client for client in everyone if strictness[client] > min(strictness)]

    def common(name: str, clients: Sequence[int]) -> Choice:
        """These clients at their smallest epsilon and delta."""
        epsilon = min(epsilons[client] for client in clients)
        delta = min(deltas[client] for client in clients)
        settings = replace(
            plan.settings,
            client_epsilons=None,
            client_deltas=None,
            epsilon=epsilon,
            delta=delta,
            weighting=None if counts_by_noise(plan) else plan.settings.weighting,
        )
        every = client_terms(replace(plan, settings=settings))
        terms = [every[client] for client in clients]
        return Choice(
            name=name,
            clients=len(clients),
            epsilon=epsilon,
            most=epsilon,
            delta=delta,
            most_delta=delta,
            noise=noise_of_mean(terms),
            share=largest_share(terms)[1],
        )

    def own(name: str, terms: Sequence[ClientTerms]) -> Choice:
        """All clients, each at its own epsilon and delta."""
        return Choice(
            name=name,
            clients=len(epsilons),
            epsilon=min(epsilons),
            most=max(epsilons),
            delta=min(deltas),
            most_delta=max(deltas),
            noise=noise_of_mean(terms),
            share=largest_share(terms)[1],
        )

    offered = [common("everyone at the smallest", everyone)]
    if others:
        offered.append(common("the strictest left out", others))
    offered.append(own("each its own", plan.terms))
    if plan.settings.weighting is None and not counts_by_noise(plan):
        offered.append(own("each its own, by noise", weighted_by_noise(plan.terms)))
    return offered


def largest_share(terms: Sequence[ClientTerms]) -> tuple[int, float]:
    """The client that counts most, and its share of the whole weight."""
    counts = [client.weight * client.sample_rate * client.num_examples for client in terms]
    most = max(counts)
    return counts.index(most), most / math.fsum(counts)


def share_notes(plan: Plan) -> tuple[str, ...]:
    """A sentence if one of three or more clients has more than half of the weight by its noise.

    There is none if rows are dealt at random, so that the clients' data do not differ.
    """
    if not counts_by_noise(plan) or plan.settings.partition == "iid" or len(plan.terms) < 3:
        return ()
    client, share = largest_share(plan.terms)
    if share <= HALF:
        return ()
    return (
        f"weighting=noise: client {client} has {share:.0%} of the weight, so the model is fitted "
        "to its data; what other clients alone have is learned slowly. Leave weighting out where "
        "the clients' data differ",
    )


def noise_of_mean(terms: Sequence[ClientTerms]) -> float:
    """Deviation of the noise on a coordinate of the weighted mean gradient, over the clip norm."""
    batch = math.fsum(client.weight * client.sample_rate * client.num_examples for client in terms)
    return math.hypot(*(client.weight * client.noise_multiplier for client in terms)) / batch
