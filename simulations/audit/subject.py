"""What ``fedlsg audit`` tests: the mechanism of a run or of settings, and the epsilon that is claimed for it.

Reads a run directory and writes nothing into it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedlsg.accounting import Event, compose
from fedlsg.attacks.audit.unit_mode import Setting
from fedlsg.attacks.audit.verdict import Claim, claim_of, training_event
from fedlsg.privacy import Ledger
from fedlsg.state import ClientTerms
from simulations.inspection.subject import Subject, subject_of_run, subject_of_settings
from simulations.plan.plan import client_terms, events_of
from simulations.report.words import REPRODUCIBLE
from simulations.rundir.rundir import RunDir
from simulations.settings.run import Device
from simulations.workloads import Progress, silent


@dataclass(frozen=True, kw_only=True, eq=False)
class Audited:
    """A subject with the terms of its worst client: claim, unit-mode setting, and where the claim comes from.

    reproducible: by its settings or an entry of a ledger, the noise can be drawn again; the claim is then void.
    """

    subject: Subject
    terms: ClientTerms
    claim: Claim
    source: str
    reproducible: bool = False

    @property
    def not_private(self) -> str | None:
        """Why the claim is void even if it is not falsified; None if it is not void."""
        return REPRODUCIBLE if self.reproducible else None

    @property
    def setting(self) -> Setting:
        """The shipped mechanism of this client, in the subject's frame, for every round of the claim."""
        base = self.subject.base
        local = base.local.at_rate(self.terms.sample_rate)
        if local.shuffled:  # the claim is that an epoch is one release with every example in it
            local = replace(local.single().at_rate(1.0), shuffled=0)
        return Setting(
            model=self.subject.model,
            frame=self.subject.frame,
            mechanism=self.terms.mechanism(base.method.mechanism),
            local=local,
            rounds=self.claim.steps // local.steps,
            claimed=self.claim.noise_multiplier,
            sums=base.sums,
        )


def audited_settings(given: Mapping[str, object], *, progress: Progress = silent) -> Audited:
    """Settings as ``fedlsg run`` takes them: epsilon is what the planned schedule would spend."""
    subject = subject_of_settings(given, progress=progress)
    check_private(subject)
    subject.state.round = subject.base.schedule.rounds - 1  # a mask that cools down freezes nothing in the first round
    progress("calibrating noise")
    terms = client_terms(subject.base)
    blocks = len(subject.frame.blocks)
    delta = delta_of(subject)
    by_client = {t: training_event(events_of(subject.base, t, blocks)) for t in terms}
    spent = {t: compose([event], delta=delta).upper for t, event in by_client.items()}
    worst = max(spent, key=lambda t: spent[t])
    claim = claim_of(by_client[worst], spent[worst], delta)
    return Audited(
        subject=subject,
        terms=worst,
        claim=claim,
        source="the planned schedule",
        reproducible=subject.base.settings.reproducible,
    )


def audited_run(path: str, *, device: Device = "auto", progress: Progress = silent) -> Audited:
    """A run directory: what its ledgers hold, and the epsilon of its summary (that of the ledgers before the end).

    Raises ValueError for a run that claims no epsilon, or without a ledger.
    """
    directory = RunDir.open(path)
    subject = subject_of_run(path, device=device, progress=progress)
    check_private(subject)
    terms = client_terms(subject.base)
    delta = delta_of(subject)
    spent: list[tuple[float, int, Event]] = []
    reproducible = subject.base.settings.reproducible
    for client in range(len(terms)):
        if directory.ledger(client).exists():
            ledger = Ledger(directory.ledger(client), client=client)
            reproducible = reproducible or ledger.reproducible
            events = ledger.events()
            if events:
                event = training_event(events)
                spent.append((compose([event], delta=delta).upper, client, event))
    if not spent:
        raise ValueError(f"{path} has no ledger with an entry: nothing was released, so there is nothing to audit")
    epsilon, client, event = max(spent)
    reported = reported_epsilon(directory.summary)
    source = "the client's ledger"
    if reported is not None and not subject.base.method.prune.reads_data:
        epsilon, source = reported, "summary.json of the run"
    claim = claim_of(event, epsilon, delta)
    return Audited(subject=subject, terms=terms[client], claim=claim, source=source, reproducible=reproducible)


def reported_epsilon(summary: Path) -> float | None:
    """``epsilon_max`` of a finished run, None before its end. Raises ValueError for a damaged summary."""
    if not summary.exists():
        return None
    try:
        return float(json.loads(summary.read_text())["epsilon_max"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{summary} is damaged: restore it from a copy") from None


def check_private(subject: Subject) -> None:
    """Raise ValueError for a mechanism that claims no epsilon."""
    mechanism = subject.base.method.mechanism
    if not mechanism.private:
        raise ValueError(
            f"mechanism {mechanism.kind!r} claims no epsilon: there is nothing to falsify; audit one with mechanism=dp"
        )


def delta_of(subject: Subject) -> float:
    """The settings' delta, which a private mechanism has."""
    delta = subject.base.settings.delta
    if delta is None or not 0 < delta < math.inf:
        raise ValueError(f"expected a {delta=} that epsilon is claimed at: give -c delta=1e-5")
    return delta
