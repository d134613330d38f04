"""The plan of a run: its base, with each client's Poisson rate and calibrated noise.

It is made once, on the server's side.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from fedlsg.accounting.population import spread
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.charged_before import Before
from fedlsg.simulations.planning.base.isolation_level import with_level
from fedlsg.simulations.planning.base.memory import with_microbatch
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.start_weights import check_source
from fedlsg.simulations.planning.client_noise import NO_NOISE, Noise, client_terms, whole_histories
from fedlsg.simulations.planning.faults.client_test_rows import check_clients
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.planning.faults.row_faults import check_rows, check_train_shape
from fedlsg.simulations.planning.faults.shared_rows import shared_notes
from fedlsg.simulations.settings.participation import adaptive_clip
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.workloads import LoadedWorkload, Progress, silent
from fedlsg.state import ClientTerms, different_terms

Spent = Callable[[Base], Before]
"""Gives what the clients of a base were charged for before."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Base):
    """A base with the terms of every client.

    terms: of each client: its Poisson rate, its calibrated noise multiplier and its weight.
    notes: sentences that the owner should know before the first charge. They are on the run's page,
        for everybody.
    for_owner: the same about private rows: for the terminal, in no file.
    given: the settings that its user gave, as ``words_given`` has them.
    began: the monotonic clock when the command or call began that the user waits for.
    """

    terms: Sequence[ClientTerms]
    notes: tuple[str, ...] = ()
    for_owner: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)


def make_plan(
    settings: Settings,
    *,
    progress: Progress = silent,
    declared: Sequence[int] | None = None,
    given: Collection[str] = (),
    loaded: LoadedWorkload | None = None,
    spent: Spent | None = None,
    noise: Noise = NO_NOISE,
) -> Plan:
    """The plan of a run: ``prepare``, then checks, and each client's noise multiplier.

    The multiplier is for the largest number of local steps of any client in the public schedule. No
    amplification by client sampling is claimed.

    progress, declared, given, loaded: see ``prepare``.
    spent: gives what the clients were charged for before, which epsilon covers, too.
    noise: noise multipliers that were calibrated when the run was last planned.
    Raises ValueError for a delta or an epsilon that cannot be met, and for rows or a model with
    which no round would end.
    """
    base = prepare(settings, progress=progress, declared=declared, given=given, loaded=loaded)
    base = with_microbatch(with_level(base))
    if spent is not None:
        base = replace(base, before=spent(base))
    base.clients.participation  # noqa: B018 - raises for a trace that cannot be used
    check_clients(base)
    if base.method.carrier.source is not None:
        progress(f"reading the source of probes, {base.initial.probe_source.name}")
        check_source(base.initial.probe_source, base.initial.model(), base.workload)
    is_own_workload = workloads.own(base.settings.workload) is not None
    if is_own_workload:
        progress("checking the rows")
        check_rows(base)
    shared = shared_notes(base)
    progress(f"calibrating the noise of {len(base.clients.sizes):,} clients")
    terms = client_terms(base, noise=noise)
    if is_own_workload and declared is None:
        check_train_shape(
            base.initial.model(), base.workload.train, base.workload.test, device=base.device
        )
    common = {t.noise_multiplier for t in different_terms(terms)}
    if base.method.mechanism.adds_noise:
        largest = max(common)
        mechanism = replace(base.method.mechanism, noise_multiplier=largest)
        is_common = len(common) == 1 and not base.clients.own_budgets
        resolved = replace(base.settings, noise_multiplier=largest if is_common else None)
        if base.unit.at_server:
            adaptive_clip(base.settings, largest)
        base = replace(base, settings=resolved, method=replace(base.method, mechanism=mechanism))
    parts = {f.name: getattr(base, f.name) for f in fields(Base)}
    return Plan(**parts, terms=terms, **shared._asdict())


def planned_epsilon(plan: Plan) -> float:
    """The largest epsilon of a client when all rounds are over, with what was spent before them."""
    terms = dict(zip(plan.clients.kinds, plan.terms, strict=True))
    histories = whole_histories(plan, terms, count_blocks(plan))
    return spread(histories, delta=plan.settings.delta).largest
