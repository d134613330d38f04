"""rho of a plan: how large the noise of a step is next to the clip norm, before the run starts and at its end."""

from fedlsg.discrete import plan_release
from fedlsg.privacy import rho
from fedlsg.state import PublicState, mean_frame
from simulations.plan.plan import Plan

RHO_MEANING = (
    "If rho is far below 1, sending fewer values rarely gains accuracy. Above 1 it may. "
    "What the noise costs a run is measured by fedlsg inspect RUN --noiseless."
)


def rho_of(plan: Plan, public: PublicState) -> float | None:
    """``fedlsg.privacy.rho`` of the mean round, at the pruning of ``public``; None for noise without a clip."""
    frame = mean_frame(public)
    return rho(
        plan.method.mechanism,
        [terms.noise_multiplier * terms.weight for terms in plan.terms],
        clients_per_round=1 if plan.draws_in_secret else plan.settings.clients_per_round,
        values=frame.wire.kept if frame.personal else frame.kept,
        blocks=len(frame.blocks),
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
    """The grid of the secure sums, and whose noise is counted; None without them."""
    if plan.sums is None:
        return None
    sums = plan.sums
    return (
        f"secure sum of at least {sums.min_survivors} of {sums.clients} clients, {sums.colluders} of which may collude "
        f"with the server: {sum_bits(plan, public)} bits a value, noise planned for {sums.contributors} honest clients"
    )


def rho_line(plan: Plan, public: PublicState) -> str | None:
    """rho, what it is of, and what it means; None where there is none."""
    found = rho_of(plan, public) if plan.method.mechanism.adds_noise else None
    if found is None:
        return None
    before = " before pruning" if plan.method.prune.reads_data else ""
    k = plan.settings.clients_per_round
    batch = f", expected batch {plan.divisor:,.0f}" if plan.client_unit is None else ""
    return (
        f"rho = {found:.3g}: norm of a step's noise over the clip norm ({mean_frame(public).kept:,} values{before}, "
        f"{k} {'client' if k == 1 else 'clients'}{batch})\n{RHO_MEANING}"
    )
