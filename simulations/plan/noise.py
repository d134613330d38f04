"""What a run says of its noise and its batches; rho: how large the noise of a step is next to the clip norm."""

import math
from collections.abc import Sequence
from statistics import fmean

from fedlsg.discrete import plan_release
from fedlsg.privacy import rho
from fedlsg.state import PublicState, each, mean_frame
from simulations.plan.plan import Plan
from simulations.settings.run import Resolved

CLAIM = (
    "shuffled batches: each example is in one batch of an epoch, and an epoch counts as one release. No amplification "
    "by shuffling is claimed. Adjacency is zero-out: one example is replaced by a record without a gradient"
)
RHO_MEANING = (
    "If rho is far below 1, sending fewer values rarely gains accuracy. Above 1 it may. "
    "What the noise costs a run is measured by fedlsg inspect RUN --noiseless."
)


def rho_of(plan: Plan, public: PublicState) -> float | None:
    """``fedlsg.privacy.rho`` of the mean round, at the pruning of ``public``; None for noise without a clip."""
    frame = mean_frame(public)
    return _rho(plan, values=frame.wire.kept if frame.personal else frame.kept, blocks=len(frame.blocks))


def pull(plan: Plan) -> float | None:
    """How far data move a weight at most over the run, next to noise: sqrt(T (B^2 + B)) / (sigma sqrt(K)).

    All T updates, each with a Poisson batch of B expected examples of gradients of the clip norm in one direction.
    None without noise, at client level, and for a clip of each block, whose number is not known here. It reads no
    training row.
    """
    whole = not plan.unit.whole and plan.method.mechanism.clip != "per-block"
    of_one = _rho(plan, values=1, blocks=1) if whole else None
    steps = plan.schedule.rounds * plan.settings.local_steps
    return math.sqrt(steps * (1 + 1 / plan.divisor)) / of_one if of_one else None


def _rho(plan: Plan, *, values: float, blocks: int) -> float | None:
    return rho(
        plan.method.mechanism,
        each(plan.terms, lambda terms: terms.noise_multiplier * terms.weight),
        clients_per_round=1 if plan.draws_in_secret else plan.settings.clients_per_round,
        values=values,
        blocks=blocks,
        expected_batch=plan.divisor,
    )


def sum_bits(plan: Plan, public: PublicState) -> int | None:
    """Bits of each integer that a client sends into a secure sum, in the mean round; None without secure sums."""
    if plan.sums is None:
        return None
    frame = mean_frame(public)
    mechanism = plan.terms[0].mechanism(plan.method.mechanism)
    return plan_release(plan.sums, mechanism, values=frame.kept, blocks=len(frame.blocks)).grid.bits


def sum_line(plan: Plan, public: PublicState) -> str | None:
    """The grid of the secure sums, whose noise is counted, and what that costs; None where no noise is shared."""
    how = plan.method.mechanism
    if not how.colluders:
        return None
    m, t, of = how.min_survivors, how.colluders, plan.settings.clients_per_round
    if plan.sums is None:
        said = f"sum of at least {m} of {of} clients, assumed to be secure, one of which may read it"
    else:
        said = (
            f"secure sum of at least {m} of {of} clients, {t} of which may collude with the server: "
            f"{sum_bits(plan, public)} bits a value"
        )
    return (
        f"{said}, noise planned for {m - t} honest client{'' if m - t == 1 else 's'}\n"
        f"every client knows its own noise: protection against {t} of them makes the noise of a sum "
        f"{math.sqrt(m / (m - t)):.3g} times as large"
    )


def rho_line(plan: Plan, public: PublicState) -> str | None:
    """rho, what it is of, and what it means; None where there is none."""
    found = rho_of(plan, public) if plan.method.mechanism.adds_noise else None
    if found is None:
        return None
    before = " before pruning" if plan.method.prune.reads_data else ""
    k = plan.settings.clients_per_round
    batch = f", expected batch {plan.divisor:,.0f}" if not plan.unit.whole else ""
    return (
        f"rho = {found:.3g}: norm of a step's noise over the clip norm ({mean_frame(public).kept:,} values{before}, "
        f"{k} {'client' if k == 1 else 'clients'}{batch})\n{RHO_MEANING}"
    )


def batches_line(s: Resolved, sizes: Sequence[int], rate: float) -> str:
    """How batches are drawn, in a few words: the Poisson rate, or the batch size and the epoch of the mean client."""
    if s.sampling != "shuffle" or s.batch_size is None:
        return f"q = {rate:.4g}"
    return f"shuffled batches of {s.batch_size}, 1 epoch = {-(-fmean(sizes) // s.batch_size):.0f} steps"
