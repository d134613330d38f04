"""audit.html, next to audit.json: the claim, what was tried against it, and the verdict, which is never "verified"."""

from collections.abc import Mapping
from typing import Any

from fedlsg.attacks.audit.verdict import SIGNIFICANCE, Verdict
from simulations.report.chart import Axis, Chart, Series, level
from simulations.report.colours import BLACK, BLUE, GREEN, RED
from simulations.report.figure import interactive
from simulations.report.page import Page, Table, Text, Tile, Tiles, data_section, download, facts_of, sections
from simulations.report.table import Column, make_table
from simulations.report.template import render

MEANING = (
    "An audit tries to prove the claimed epsilon wrong. It plants canaries, guesses from the outputs which of them "
    "took part, and computes how large epsilon must be at least for so many right guesses. A lower bound above the "
    "claim refutes it. A lower bound below the claim proves nothing: a better audit may exist."
)


CAPTION = (
    "The dashed line is the claim. Lower bounds right of it refute it; left of it they prove nothing. The "
    "estimate is no bound."
)


def headline(verdict: Verdict) -> str:
    """The verdict, the claim and the best lower bound."""
    claim, best = verdict.claim, _best(verdict)
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
    meaning = Text(words=MEANING, style="note")
    return render(
        Page(
            kind="fedlsg audit",
            title="Is the claimed epsilon wrong?",
            lead=f"{report['workload']} with {report['method']}; claim of {report['claimed_by']}.",
            headline=headline(verdict),
            badge=("falsified", "bad") if verdict.falsified else ("passed: not falsified", "good"),
            warnings=warnings,
            sections=sections(
                ("", [_tiles(verdict, report["reader"])]),
                ("Claim, bounds and estimate", [interactive([chart(verdict)], CAPTION, columns=1), figures, meaning]),
                ("Checks", [_checks(verdict)]),
                ("What was audited", [facts_of(asked)]),
                ("What the auditor knows and sees", [Text(words=report["threat_model"])]),
                data_section(download(name, data, "all numbers of this page")),
            ),
        )
    )


def _tiles(verdict: Verdict, reader: str) -> Tiles:
    """The claim, the best bound, the estimate, and how many checks passed."""
    claim, best, estimate = verdict.claim, _best(verdict), verdict.estimate.epsilon
    passed, checks = sum(check.passed for check in verdict.checks), len(verdict.checks)
    refuted = verdict.one_run.refutes or verdict.f_dp.refutes
    said = "above the claim: refuted" if refuted else "does not refute the claim"
    return Tiles(
        tiles=(
            Tile(name="claimed epsilon", value=f"{claim.epsilon:.3f}", note=f"at delta {claim.delta:g}; {reader}"),
            Tile(name="measured: at least", value=f"{best:.3f}", note=said, style="bad" if refuted else "good"),
            Tile(
                name="estimate", value=f"{estimate.value:.3f}",
                note=f"{estimate.low:.3f} to {estimate.high:.3f} at 95 %; no bound",
            ),
            Tile(
                name="checks passed", value=f"{passed} of {checks}",
                note="of the mechanism's outputs", style="good" if passed == checks else "bad",
            ),
        )
    )  # fmt: skip


def chart(verdict: Verdict) -> Chart:
    """The claim as a line up; what was measured from below, and the estimate, as a row each."""
    e = verdict.estimate.epsilon
    bounds = [("one-run bound", verdict.one_run), ("f-DP one-run bound", verdict.f_dp)]
    series = [
        Series(
            name="lower bound, refutes the claim" if bound.refutes else "lower bound",
            x=(bound.epsilon,), y=(float(place),),
            colour=RED if bound.refutes else GREEN, marker=">", line=False, words=("at least",),
        )
        for place, (_, bound) in enumerate(bounds)
    ]  # fmt: skip
    estimate = Series(
        name="estimate, 95 % interval", x=(e.value,), y=(2.0,), left=(e.low,), right=(e.high,), colour=BLUE, marker="o",
        line=False, filled=False,
    )  # fmt: skip
    claim = level(verdict.claim.epsilon, "claimed epsilon", BLACK, upright=True)
    y = Axis(ticks=(*((float(place), name) for place, (name, _) in enumerate(bounds)), (2.0, "GDP estimate")),
             low=-0.6, high=2.6, down=True)  # fmt: skip
    x = Axis(label="epsilon", low=0.0)
    return Chart(title="Claim and measurements on one axis", x=x, y=y, series=(claim, *series, estimate), height=230)


def _best(verdict: Verdict) -> float:
    return max(verdict.one_run.epsilon, verdict.f_dp.epsilon)


def _checks(verdict: Verdict) -> Table:
    """A row for each check."""
    columns = [
        Column("check", lambda check: check.name),
        Column("outcome", lambda check: "passed" if check.passed else "FAILED", left=True),
        Column("what it says", lambda check: check.says, left=True),
    ]
    return make_table(columns, verdict.checks, style=lambda check: "good" if check.passed else "alert")
