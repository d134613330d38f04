"""The clients of a run as public numbers: their sizes, budgets, participation and weights.

A weight multiplies the values of a client. It is a public constant made of declared sizes and
rates, never of realised ones.

Symbols: N_k declared examples, q_k Poisson rate, B = q mean(N) the expected batch that the server
divides by. ``weighting`` and the weight of client k:

    default     1                     the client counts by its expected batch q_k N_k: by its
                                      examples with one sample_rate, equally with one batch_size
    examples    B / (q_k mean(N))     it counts by its examples N_k, at any rate
    clients     B / (q_k N_k)         all clients count equally, at any size
    noise       ~ 1 / sigma_k^2       (``own_weights``): the weighted mean with the least noise;
                                      the default with own budgets if rows are dealt at random, so
                                      that clients do not differ

The server multiplies values that have their noise already: it is post-processing, and no epsilon
changes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median_low

from fedlsg.config.selection import selection_of
from fedlsg.config.units import Unit
from fedlsg.method import LocalTraining, Schedule
from fedlsg.participation import Participation
from fedlsg.privacy import Mechanism
from fedlsg.privacy.sampling import batches_of_epoch, epochs_begun
from fedlsg.simulations.planning.base.charged_before import Before, Kind
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.own_epsilons import budget_of
from fedlsg.simulations.settings.participation import participation_of

SAME = 1e-9
"""A weight whose relative difference from 1 is at most this is 1, up to rounding."""
BY_NOISE = "noise"
"""The weighting by 1 / sigma_k^2, which depends on what each client may spend."""
CAP = 16.0
"""A client counts at most this many times as much as the median one.

In a deployment a node says what its epsilon is. Without a cap, one that named a huge epsilon would
decide the whole mean.
"""


def poisson_rate(s: Resolved, local: LocalTraining, num_examples: int) -> float:
    """Poisson rate of a client with so many examples."""
    return local.sample_rate if s.batch_size is None else min(s.batch_size / num_examples, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """All clients, by number. No field changes, so what is cached here is never stale.

    settings: of the run.
    local: how a client trains in a round.
    schedule: the public schedule of rounds.
    unit: what epsilon protects.
    sizes: declared examples, or persons, N_k.
    names: names of the clients in the data; None without, and if who takes part is secret.
    before: what they were charged for before the rounds of this plan.
    """

    settings: Resolved
    local: LocalTraining
    schedule: Schedule
    unit: Unit
    sizes: Sequence[int]
    names: tuple[str, ...] | None
    before: Before

    @property
    def own_budgets(self) -> bool:
        """Whether clients have an epsilon or a delta of their own, and noise and weight for it."""
        s = self.settings
        return s.client_epsilons is not None or s.client_deltas is not None

    @cached_property
    def budgets(self) -> Sequence[tuple[float | None, float | None]]:
        """What every client may spend in the run, (epsilon, delta); None without a target."""
        s, number = self.settings, len(self.sizes)
        if not self.own_budgets:
            return [(s.epsilon, s.delta)] * number
        return [budget_of(s, client) for client in range(number)]

    @cached_property
    def kinds(self) -> Sequence[Kind]:
        """The kind of every client, (size, epsilon, delta), from which its noise follows."""
        return [(size, *budget) for size, budget in zip(self.sizes, self.budgets, strict=True)]

    @cached_property
    def rate_of_size(self) -> dict[int, float]:
        """Poisson rate by declared size."""
        sizes = dict.fromkeys(self.sizes)
        return {size: poisson_rate(self.settings, self.local, size) for size in sizes}

    @property
    def rates(self) -> list[float]:
        """Poisson rate of every client."""
        return list(map(self.rate_of_size.__getitem__, self.sizes))

    @property
    def largest_batch(self) -> float:
        """The largest expected batch of a client, q_k N_k."""
        return max(rate * size for size, rate in self.rate_of_size.items())

    @cached_property
    def participation(self) -> Participation:
        """Who is selected, who leaves and how long replies take.

        A server that draws in secret draws among all available clients, and uses every reply that
        is in time. With a limit on their number, one client would decide whether another one
        counts. Raises ValueError as ``participation_of``.
        """
        s, secret = self.settings, self.unit.at_server
        return participation_of(
            s,
            self.local,
            sizes=self.sizes,
            rates=self.rates,
            per_round=len(self.sizes) if secret else s.clients_per_round,
            selection=selection_of(s.selection, secret=secret),
        )

    @property
    def steps_a_round(self) -> int:
        """Noisy steps that a client's ledger is charged for a round: K, or one at client level."""
        return self.unit.steps(self.local.steps)

    @property
    def steps(self) -> list[int]:
        """Noisy steps of every client in the public schedule: those of rounds that select it.

        If the server draws the clients in secret, every round counts for each.
        """
        rounds = self.schedule.rounds
        if self.unit.at_server:
            return [rounds] * len(self.sizes)
        counts = self.participation.selections(rounds)
        return [self.steps_a_round * counts[client] for client in range(len(self.sizes))]

    @cached_property
    def most_steps(self) -> int:
        """The largest number of noisy steps of a client in the rounds to come.

        Noise is calibrated to it.
        """
        rounds, after = self.schedule.rounds, self.before.rounds
        if self.unit.at_server:
            return rounds - after
        return self.steps_a_round * self.participation.most_selections(rounds, after=after)

    def accounted_rate(self, sample_rate: float) -> float:
        """The sampling rate in the ledger of a client whose batches have ``sample_rate``.

        It is 1 for shuffled batches: an example is in one batch of an epoch, and
        ``accounted_steps`` counts epochs.
        """
        return 1.0 if self.local.shuffled else self.unit.rate(sample_rate)

    def accounted_steps(self, num_examples: int, steps: int | None = None) -> int:
        """How often one of a client's examples may take part in ``steps`` noisy steps.

        For Poisson batches it is every step, at the accounted rate. For shuffled batches it is once
        in each epoch that is begun, and once in an epoch that earlier rounds may have begun.
        ``steps``: None: all steps to come.
        """
        count = self.most_steps if steps is None else steps
        if not self.local.shuffled:
            return count
        begun = 1 if self.before.rounds else 0
        return begun + epochs_begun(count, batches_of_epoch(num_examples, self.local.shuffled))


def client_weights(clients: Clients, mechanism: Mechanism) -> dict[int, float]:
    """The weight of clients by their declared size, for a weighting that sizes decide.

    Raises ValueError if the server sees only a sum, and weights are not 1.
    """
    s, rates = clients.settings, clients.rate_of_size
    weighting = s.weighting
    if weighting is None and s.trust == "client" and mechanism.is_plain:
        weighting = "examples"  # FedAvg
    if weighting in (None, BY_NOISE):
        return dict.fromkeys(rates, 1.0)
    mean, batch = fmean(clients.sizes), clients.local.expected_batch
    exact = {
        size: batch / (rate * (mean if weighting == "examples" else size))
        for size, rate in rates.items()
    }
    weights = {
        size: 1.0 if math.isclose(weight, 1.0, rel_tol=SAME) else weight
        for size, weight in exact.items()
    }
    if s.trust != "client" and any(weight != 1 for weight in weights.values()):
        least, most = min(weights.values()), max(weights.values())
        raise ValueError(
            f"weighting={s.weighting} multiplies each client's values, from {least:.3g} to "
            f"{most:.3g} here, and under trust={s.trust} the server sees their sum alone: leave "
            "weighting out, or take trust=client"
        )
    return weights


def own_weights(sigmas: Sequence[float], batches: Sequence[float]) -> list[float]:
    """w_k of each client by its noise: proportional to min(1 / sigma_k^2, CAP * median).

    The median of an even number of clients is the lower one of the two in the middle, because a
    liar may be the other. Weights are scaled so that sum w_k b_k = sum b_k, with b_k = q_k N_k the
    ``batches``: the server's divisor stays as it is. Clients of one sigma all have exactly 1.
    """
    precisions = [sigma**-2.0 for sigma in sigmas]
    most = CAP * median_low(precisions)
    capped = [min(precision, most) for precision in precisions]
    if max(capped) == min(capped):
        return [1.0] * len(capped)
    scale = math.fsum(batches) / math.fsum(w * b for w, b in zip(capped, batches, strict=True))
    return [weight * scale for weight in capped]
