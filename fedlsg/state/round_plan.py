"""The public plan of a round: phase, frame, mechanism, local training, and each client's terms.

A run has two phases. If pruning reads the clients' data (DP-SNIP) there is one pruning round; then
come the training rounds. Messages, ledgers and files give the pruning round the number
``PRUNING_ROUND``, and training rounds numbers from 1.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from jaxtyping import Float
from torch import Tensor

from fedlsg.config.units import EXAMPLE, Unit
from fedlsg.frame import Frame
from fedlsg.masks import pruning_mechanism, saliency_scale
from fedlsg.method import LocalTraining, Method
from fedlsg.privacy import Mechanism
from fedlsg.privacy.sampling import batches_of_epoch
from fedlsg.secure_sum.discrete.sum_release import Release, SumTerms, plan_release
from fedlsg.training import accumulated_noise

SAME = 1e-9
"""Relative difference of two sums of expected batches that is rounding."""
PRUNING_ROUND = 0
"""The number of the pruning round."""


class Phase(Enum):
    """What clients compute in a round: saliencies for pruning, or gradients for training."""

    PRUNING = "pruning"
    TRAINING = "training"


def phase_of(round: int) -> Phase:
    """The phase of a round by its number."""
    return Phase.PRUNING if round == PRUNING_ROUND else Phase.TRAINING


def finished_before(round: int) -> int:
    """Training rounds that are over when ``round`` begins."""
    return max(round - 1, 0)


@dataclass(frozen=True, kw_only=True)
class ClientTerms:
    """Public terms of one client.

    num_examples: N_k, as declared.
    sample_rate: the Poisson rate.
    noise_multiplier: the nominal one of training rounds.
    prune_noise_multiplier: that of the pruning round.
    weight: factor of the client's noisy values in the server's sum.
    """

    num_examples: int
    sample_rate: float
    noise_multiplier: float
    prune_noise_multiplier: float = 0.0
    weight: float = 1.0

    def mechanism(self, common: Mechanism) -> Mechanism:
        """The federation's mechanism at this client's noise multiplier."""
        if not common.adds_noise:
            return common
        return replace(common, noise_multiplier=self.noise_multiplier)

    def of(self, phase: Phase) -> "ClientTerms":
        """The terms of a phase. Every example takes part in pruning, which has its own noise."""
        if phase is Phase.TRAINING:
            return self
        return replace(
            self, sample_rate=1.0, noise_multiplier=self.prune_noise_multiplier, weight=1.0
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundPlan:
    """A round as server and clients derive it.

    round: its number in messages, ledgers and files.
    frame: its coordinates.
    mechanism: clip and noise.
    local: the local training of clients.
    sums: public constants of secure sums; None if every payload is read on its own.
    unit: what the run's epsilon protects.
    """

    round: int
    frame: Frame
    mechanism: Mechanism
    local: LocalTraining
    sums: SumTerms | None = None
    unit: Unit = EXAMPLE

    @property
    def releases_examples(self) -> bool:
        """Whether a client clips examples, or nothing, and not its whole update."""
        return not (self.unit.whole and self.mechanism.private)

    @property
    def phase(self) -> Phase:
        """Pruning or training."""
        return phase_of(self.round)

    def for_client(self, terms: ClientTerms) -> "RoundPlan":
        """The same round with the noise multiplier, Poisson rate and expected batch of one client.

        ``terms``: those of this phase. If the server adds the noise, a client sends its update as
        it is, and its own ledger entry has mechanism "none". It does not know the clip norm, which
        may change. Clients of equal terms share one plan.
        """
        key = terms.noise_multiplier, terms.sample_rate, terms.num_examples
        if key not in self._for_terms:
            self._for_terms[key] = self._at_terms(terms)
        return self._for_terms[key]

    @cached_property
    def _for_terms(self) -> dict[tuple[float, float, int], "RoundPlan"]:
        """The cache of ``for_client``."""
        return {}

    def _at_terms(self, terms: ClientTerms) -> "RoundPlan":
        """``for_client`` without the cache."""
        mechanism = terms.mechanism(self.mechanism)
        if self.unit.at_server:
            mechanism = replace(mechanism, kind="none", clip_norm=math.inf)
        local = self.local.of_client(terms.sample_rate, terms.num_examples)
        return replace(self, mechanism=mechanism, local=local)

    def divisor(self, fixed: float, clients: Iterable[ClientTerms]) -> float:
        """The divisor of the weighted sum over ``clients``, which took part.

        If values are clipped or noisy it is ``fixed``, public and the same in all rounds. Otherwise
        it is the sum of the clients' expected batches, so that the result is the mean of FedAvg
        (McMahan et al. 2017, Alg. 1), also in a round of some clients.
        """
        if not self.mechanism.is_plain:
            return fixed
        batches = sum(terms.weight * self.for_client(terms).local.batch for terms in clients)
        return fixed if math.isclose(batches, fixed, rel_tol=SAME) else batches

    def at_clip_norm(self, clip_norm: float) -> "RoundPlan":
        """The same round at another clip norm."""
        return replace(self, mechanism=replace(self.mechanism, clip_norm=clip_norm))

    @cached_property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each value after all local steps."""
        if not self.releases_examples:
            return self.mechanism.noise_std  # once, after the last step
        return accumulated_noise(
            self.mechanism.noise_std, self.local.steps, self.local.momentum, self.local.pull
        )

    @property
    def release(self) -> Release | None:
        """The plan of the round's secure sum; None without one."""
        if self.sums is None:
            return None
        return plan_release(
            self.sums, self.mechanism, values=self.frame.kept, blocks=len(self.frame.blocks)
        )

    def scale(self, weights: Mapping[str, Tensor]) -> list[Float[Tensor, " kept"]] | None:
        """Factors of the gradients before the clip: weights for saliencies, None in training."""
        return saliency_scale(weights, self.frame) if self.phase is Phase.PRUNING else None

    def charge(self, num_examples: int) -> dict[str, Any]:
        """The fields of a client's ledger ``Entry`` that follow from the plan.

        ``num_examples``: declared ones of the client.
        """
        if num_examples not in self._charges:
            self._charges[num_examples] = self._charge(num_examples)
        return self._charges[num_examples]

    @cached_property
    def _charges(self) -> dict[int, dict[str, Any]]:
        """The cache of ``charge``."""
        return {}

    def _charge(self, num_examples: int) -> dict[str, Any]:
        """``charge`` without the cache."""
        unit = EXAMPLE if self.unit.whole and self.releases_examples else self.unit
        return {
            **takes_part(unit, self.local, num_examples),
            "noise_multiplier": self.mechanism.effective_noise_multiplier(len(self.frame.blocks))
            / unit.examples,
            "clip_norm": self.mechanism.clip_norm,
            "num_examples": num_examples,
            "mechanism": self.mechanism.kind,
            "isolation": self.local.isolation,
            **({} if self.release is None else {"log_ratio": self.release.log_ratio}),
            **self._shares,
        }

    @property
    def _shares(self) -> dict[str, int]:
        """m and t of a sum whose clients share the noise, as fields of ``Entry``."""
        shares = self.mechanism if self.sums is None else self.sums
        if not (self.mechanism.private and shares.colluders):
            return {}
        return {"min_survivors": shares.min_survivors, "colluders": shares.colluders}


def takes_part(unit: Unit, local: LocalTraining, num_examples: int) -> dict[str, Any]:
    """The releases of a round in which a unit may be, and with what probability, as fields of
    ``Entry``.
    """
    fields = {
        "unit": unit.name,
        "steps": unit.steps(local.steps),
        "sample_rate": unit.rate(local.sample_rate),
    }
    if local.shuffled and not unit.whole:
        fields |= {"sample_rate": 1.0, "batches": batches_of_epoch(num_examples, local.shuffled)}
    return fields


def plan_round(
    method: Method,
    round: int,
    frame: Frame,
    local: LocalTraining,
    sums: SumTerms | None = None,
    unit: Unit = EXAMPLE,
) -> RoundPlan:
    """The plan of a round in its frame; ``local``, ``sums``, ``unit``: those of the federation.

    The pruning round takes one step, with a clip norm of its own.
    """
    if phase_of(round) is Phase.TRAINING:
        return RoundPlan(
            round=round, frame=frame, mechanism=method.mechanism, local=local, sums=sums, unit=unit
        )
    mechanism = pruning_mechanism(method.mechanism, method.prune)
    single_step = replace(local.single(), shuffled=0)  # every example takes part
    return RoundPlan(
        round=round,
        frame=frame,
        mechanism=mechanism,
        local=single_step,
        sums=sums,
        unit=EXAMPLE if unit.whole else unit,
    )


def different_terms(terms: Sequence[ClientTerms]) -> Collection[ClientTerms]:
    """The different terms, each once; clients of one size may share an object, of very many."""
    return dict.fromkeys({id(client): client for client in terms}.values())


def sizes_of(terms: Sequence[ClientTerms]) -> list[int]:
    """Declared examples of each client."""
    return [client.num_examples for client in terms]


def each(terms: Sequence[ClientTerms], value: Callable[[ClientTerms], float]) -> list[float]:
    """A value of each client's terms, computed once for clients that share an object."""
    known = {key: value(client) for key, client in {id(client): client for client in terms}.items()}
    return [known[id(client)] for client in terms]
