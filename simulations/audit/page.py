"""audit.html, next to audit.json: the claim, what was tried against it, and the verdict, which is never "verified"."""

from collections.abc import Mapping
from typing import Any

from fedlsg.attacks.audit.verdict import SIGNIFICANCE, Verdict
from simulations.report.page import Page, Table, Text, data_section, download, facts_of, sections
from simulations.report.render import render
from simulations.report.table import Column, make_table

MEANING = (
    "An audit tries to prove the claimed epsilon wrong. It plants canaries, guesses from the outputs which of them "
    "took part, and computes how large epsilon must be at least for so many right guesses. A lower bound above the "
    "claim refutes it. A lower bound below the claim proves nothing: a better audit may exist."
)


def headline(verdict: Verdict) -> str:
    """The verdict, the claim and the best lower bound."""
    claim, best = verdict.claim, max(verdict.one_run.epsilon, verdict.f_dp.epsilon)
    found = f"the largest lower bound is {best:.3f}, at {100 * (1 - SIGNIFICANCE):g} % confidence"
    claimed = f"the claim is epsilon {claim.epsilon:.3f} (delta {claim.delta:g}), and {found}"
    if verdict.falsified:
        return f"Falsified by {', '.join(verdict.reasons)}: {claimed}."
    return f"Not falsified: {claimed}. That does not verify the claim."


def page(
    verdict: Verdict, figures: Table, report: Mapping[str, Any], data: bytes, *, name: str, warnings: tuple[str, ...]
) -> str:
    """One file that requests nothing. ``report`` is what audit.json says, ``data`` its bytes under ``name``."""
    claim = verdict.claim
    asked = {
        "claim of": report["claimed_by"],
        "workload": report["workload"],
        "method": report["method"],
        "epsilon": f"{claim.epsilon:.3f} at delta {claim.delta:g}",
        "steps": f"{claim.steps} at sample rate q = {claim.sample_rate:.4g}",
        "reader": f"{report['reader']} (trust={report['trust']}, unit={report['unit']})",
        "noise": f"sigma_eff {claim.noise_multiplier:.4g} is the least that the claim needs",
        "audit": f"mode {report['mode']}, {report['canaries']} canaries ({report['canary_kind']})",
        "time": f"{report['seconds']} s",
    }
    return render(
        Page(
            kind="fedlsg audit",
            title="Is the claimed epsilon wrong?",
            lead=f"{report['workload']} with {report['method']}; claim of {report['claimed_by']}.",
            headline=headline(verdict),
            warnings=warnings,
            sections=sections(
                ("Key facts", [facts_of(asked)]),
                ("Bounds and estimate", [figures, Text(words=MEANING, style="note")]),
                ("Checks", [_checks(verdict)]),
                ("What the auditor knows and sees", [Text(words=report["threat_model"])]),
                data_section(download(name, data, "all numbers of this page")),
            ),
        )
    )


def _checks(verdict: Verdict) -> Table:
    """A row for each check."""
    columns = [
        Column("check", lambda check: check.name),
        Column("outcome", lambda check: "passed" if check.passed else "FAILED", left=True),
        Column("what it says", lambda check: check.says, left=True),
    ]
    return make_table(columns, verdict.checks, style=lambda check: "" if check.passed else "alert")
