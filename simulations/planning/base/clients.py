"""The clients of a run as public numbers: how much data each one declares, what it may spend, how
often it takes part, and how much it counts.

A weight is a public constant made of declared sizes and rates, never of realised ones.

Symbols: N_k declared examples, q_k Poisson rate, B = q mean(N) the expected batch that the server
divides by. What a client counts:

    default     1                     by its expected batch q_k N_k: by its examples under one
                                      sample_rate, like any other under one batch_size
    examples    B / (q_k mean(N))     by its examples N_k, whatever its rate
    clients     B / (q_k N_k)         like any other, whatever its size
    noise       1 / sigma_k^2         (``own_weights``): of all weighted means this one has the
                                      least noise; the default under budgets of their own where
                                      rows are dealt at random, so that all means are of one kind

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
"""Relative difference from 1 at which a weight is 1."""
BY_NOISE = "noise"
"""The weighting by 1 / sigma_k^2, which depends on what each client may spend."""
CAP = 16.0
"""A client counts at most so many times as much as the median one. In a deployment a node says what
its epsilon is, and one that named a huge epsilon would otherwise be the whole federation.
"""


def poisson_rate(s: Resolved, local: LocalTraining, num_examples: int) -> float:
    """Poisson rate of a client with so many examples."""
    return local.sample_rate if s.batch_size is None else min(s.batch_size / num_examples, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """All clients, by number. No field changes, so what is cached here is never stale.

    sizes: declared examples, or persons, N_k.
    names: what the data call them; None where they have numbers alone, and at a server whose secret
        is who takes part.
    before: what they were charged for before the rounds that come.
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
        """What the noise of every client follows from."""
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
        """Who is selected, who leaves and how long replies take. Raises ValueError as
        ``participation_of``.

        A server that draws in secret draws among all who are there, and uses every reply that is in
        time: with a limit on their number, one client would decide whether another one counts.
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
        """Noisy steps of a client in a round, which its ledger is charged with: K of them, or one
        at client level.
        """
        return self.unit.steps(self.local.steps)

    @property
    def steps(self) -> list[int]:
        """Noisy steps of every client in the public schedule: those of the rounds in which it is
        selected. Every round counts where the server draws the clients in secret.
        """
        rounds = self.schedule.rounds
        if self.unit.at_server:
            return [rounds] * len(self.sizes)
        counts = self.participation.selections(rounds)
        return [self.steps_a_round * counts[client] for client in range(len(self.sizes))]

    @cached_property
    def most_steps(self) -> int:
        """The largest number of noisy steps of a client in the rounds of the public schedule that
        come, which noise is calibrated to.
        """
        rounds, after = self.schedule.rounds, self.before.rounds
        if self.unit.at_server:
            return rounds - after
        return self.steps_a_round * self.participation.most_selections(rounds, after=after)

    def accounted_rate(self, sample_rate: float) -> float:
        """The sampling rate that the ledger is charged with, for a client whose batches have
        ``sample_rate``.

        Shuffled batches have none: an example is in one batch of an epoch, and ``accounted_steps``
        counts epochs.
        """
        return 1.0 if self.local.shuffled else self.unit.rate(sample_rate)

    def accounted_steps(self, num_examples: int, steps: int | None = None) -> int:
        """How often one of a client's examples may take part in ``steps`` noisy steps; by default,
        in all that come.

        That is every step for Poisson batches, at the rate that is accounted; with shuffled ones,
        once in each epoch that is begun, and once in one that earlier rounds may have begun.
        """
        count = self.most_steps if steps is None else steps
        if not self.local.shuffled:
            return count
        begun = 1 if self.before.rounds else 0
        return begun + epochs_begun(count, batches_of_epoch(num_examples, self.local.shuffled))


def client_weights(clients: Clients, mechanism: Mechanism) -> dict[int, float]:
    """The factor of the values of clients, by their declared size.

    Raises ValueError where the server sees a sum alone and factors are not 1.
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
    """w_k of each client: proportional to 1 / sigma_k^2, ``CAP`` times the median at most: of an
    even number of clients the lower one of the two in the middle, as a liar may be the other.

    ``batches``: q_k N_k. Their weighted mean is their mean, so the server's divisor stays as it is.
    Clients of one sigma all have exactly 1.
    """
    precisions = [sigma**-2.0 for sigma in sigmas]
    most = CAP * median_low(precisions)
    kept = [min(precision, most) for precision in precisions]
    if max(kept) == min(kept):
        return [1.0] * len(kept)
    scale = math.fsum(batches) / math.fsum(w * b for w, b in zip(kept, batches, strict=True))
    return [weight * scale for weight in kept]
