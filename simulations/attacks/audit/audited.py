"""The subject of an audit: the mechanism of a run or of settings, and the claim about it.

It writes nothing into a run directory.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlsg import bounded
from fedlsg.accounting import Event, compose
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.attacks.audit.played.stated import Stated
from fedlsg.attacks.audit.verdict import Claim, stated_claim, training_event
from fedlsg.privacy import SERVER
from fedlsg.simulations.attacks.audit.threat_models import threat_model
from fedlsg.simulations.inspection import Subject, subject_of_run, subject_of_settings
from fedlsg.simulations.planning.advice.remarks import schedule_of, stated_of
from fedlsg.simulations.planning.client_noise import client_terms, events_of
from fedlsg.simulations.report.words import REPRODUCIBLE
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.participation import adaptive_clip
from fedlsg.simulations.settings.rule_checker import refuse_groups
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import Progress, silent
from fedlsg.state import ClientTerms


@dataclass(frozen=True, kw_only=True, eq=False)
class Audited:
    """A mechanism that is audited, and the claim about it.

    subject: run or settings.
    terms: of its worst client.
    stated: epsilon, delta, q, steps and reader of the claim.
    source: of the claim, in words.
    reproducible: whether the noise can be drawn again, by the settings or an entry of a ledger;
        the claim is then void.
    """

    subject: Subject
    terms: ClientTerms
    stated: Stated
    source: str
    reproducible: bool = False

    @property
    def claim(self) -> Claim:
        """The claim, at the least noise that makes it true."""
        return stated_claim(self.stated)

    @property
    def not_private(self) -> str | None:
        """Why the claim is void even if it is not falsified; None if it is not void."""
        return REPRODUCIBLE if self.reproducible else None

    def threat_model(self, mode: str) -> str:
        """What the auditor knows and sees in a mode, in words."""
        return threat_model(self.stated, self.subject.base.unit, mode)

    @property
    def setting(self) -> AuditSetting:
        """The mechanism of this client as runs use it, in the subject's frame, for all rounds."""
        base, stated = self.subject.base, self.stated
        local = base.local.at_rate(self.terms.sample_rate)
        shuffled = bool(local.shuffled)
        if (
            shuffled
        ):  # audited as one release an epoch, of a full batch; the batches are not audited
            local = replace(local.single().at_rate(1.0), shuffled=0)
        mechanism = self.terms.mechanism(base.method.mechanism)
        return AuditSetting(
            model=self.subject.model,
            frame=self.subject.frame,
            mechanism=mechanism,
            local=local,
            rounds=max(1, stated.steps // base.unit.steps(local.steps)),
            stated=stated,
            sums=base.sums,
            unit=base.unit,
            person_rows=base.settings.person_rows,
            person_gradient=base.settings.person_gradient,
            adaptive=adaptive_clip(base.settings, mechanism.noise_multiplier),
            shuffled=shuffled,
            prunes=base.method.prune.reads_data,
        )


def audited_settings(given: Mapping[str, object], *, progress: Progress = silent) -> Audited:
    """The audit of settings as ``fedlsg run`` takes them.

    The claim is their epsilon, or what the planned schedule spends at their noise. The subject is
    in the last round: a mask that cools down freezes nothing in the first one.
    """
    subject = subject_of_settings(given, progress=progress, clients=True)
    check_auditable(subject)
    base = subject.base
    subject.state.round = base.schedule.rounds - 1
    progress("calibrating noise")
    blocks, delta = len(subject.frame.blocks), delta_of(subject)
    epsilons = {
        terms: compose([training_event(events_of(base, terms, blocks))], delta=delta).upper
        for terms in client_terms(base)
    }
    worst = max(epsilons, key=lambda terms: epsilons[terms])
    claimed = base.settings.epsilon
    if base.settings.noise_multiplier is not None or base.method.prune.reads_data:
        claimed = None  # the noise is given, or epsilon is of the pruning round as well
    epsilon = epsilons[worst] if claimed is None else claimed
    sample_rate, steps = schedule_of(base, worst)
    return Audited(
        subject=subject,
        terms=worst,
        stated=stated_of(base, epsilon=epsilon, delta=delta, sample_rate=sample_rate, steps=steps),
        source="the planned schedule" if claimed is None else "the settings",
        reproducible=base.settings.reproducible,
    )


def audited_run(path: str, *, device: Device = "auto") -> Audited:
    """The audit of a run directory, at its last checkpoint.

    The claim is the epsilon of its summary; before the end of the run it is that of the ledgers.
    Raises ValueError for a run that claims no epsilon, or without a ledger.
    """
    directory = RunDir.open(path)
    subject = subject_of_run(path, device=device, clients=True)
    check_auditable(subject)
    base, delta = subject.base, delta_of(subject)
    terms = client_terms(base)
    spent: list[tuple[float, int, Event]] = []
    reproducible, charges = base.settings.reproducible, directory.charges
    for client in [SERVER] if base.unit.at_server else range(len(terms)):
        reproducible = reproducible or charges.of(client).reproducible
        if events := charges.of(client).events():
            event = training_event(events)
            spent.append((compose([event], delta=delta).upper, client, event))
    if not spent:
        raise ValueError(
            f"{path} has no ledger with an entry: nothing was released, so there is nothing to "
            "audit"
        )
    epsilon, client, event = max(spent, key=lambda entry: entry[:2])
    reported = reported_epsilon(directory.summary)
    source = "the server's ledger" if client == SERVER else "the client's ledger"
    # the summary counts a pruning round as well, and is infinite for noise that can be repeated
    if reported is not None and not base.method.prune.reads_data and not reproducible:
        epsilon, source = reported, "summary.json of the run"
    stated = stated_of(
        base, epsilon=epsilon, delta=delta, sample_rate=event.sample_rate, steps=event.steps
    )
    return Audited(
        subject=subject,
        terms=terms[0 if client == SERVER else client],
        stated=stated,
        source=source,
        reproducible=reproducible,
    )


def reported_epsilon(summary: Path) -> float | None:
    """``epsilon_max`` of a finished run; None before its end.

    Raises ValueError for a damaged summary.
    """
    if not summary.exists():
        return None
    try:
        return float(bounded.read_json(summary)["epsilon_max"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{summary} is damaged: restore it from a copy") from None


def check_auditable(subject: Subject) -> None:
    """Raise ValueError for a mechanism without an epsilon, and for units of several examples."""
    mechanism = subject.base.method.mechanism
    refuse_groups(subject.base.settings, "fedlsg audit")
    if not mechanism.private:
        raise ValueError(
            f"mechanism {mechanism.kind!r} claims no epsilon: there is nothing to falsify; audit "
            "one with mechanism=dp"
        )


def delta_of(subject: Subject) -> float:
    """The delta of the settings. Raises ValueError without one."""
    delta = subject.base.settings.delta
    if delta is None or not 0 < delta < math.inf:
        raise ValueError(f"expected a {delta=} that epsilon is claimed at: give -c delta=1e-5")
    return delta


def circumstances(
    audited: Audited, mode: str, canaries: int, kind: str, *, seed: int | None, plant: str | None
) -> dict[str, Any]:
    """The content of audit.json about an audit, in addition to its verdict."""
    settings = audited.subject.base.settings
    return {
        "claimed_by": audited.source,
        "reproducible": audited.reproducible,
        "not_private": audited.not_private,
        "mode": mode,
        "canaries": canaries,
        "canary_kind": kind,
        "threat_model": audited.threat_model(mode),
        "trust": audited.stated.trust,
        "unit": audited.stated.unit,
        "reader": audited.stated.reader,
        "method": settings.method,
        "workload": settings.workload,
        "seed": seed,
        "plant": plant,
    }
