"""What a user of ``fedlsg audit`` sees: the claim, the figures and checks, and the verdict last."""

from rich.console import Console

from fedlsg.attacks.audit.verdict import SIGNIFICANCE, Verdict
from simulations.audit.subject import Audited
from simulations.report.page import Row, Table
from simulations.report.terminal import print_table

THREATS = {
    "unit": "The auditor chooses the gradients of the canaries. It knows frame, mask, clip, sigma and q, and sees the "
    "noisy sum of every round of one client. Which canaries are in, the batches and the noise are secret. Not "
    "covered: the backward pass, the wire, the server, and the frames of other rounds.",
    "training": "Canaries are training examples with a wrong label, or images of another kind. The auditor knows every "
    "example and the public state of every round, and sees every payload of each client as it was sent. Which "
    "canaries are in, the batches and the noise are secret.",
}


def announce(audited: Audited, mode: str, plant: str | None, console: Console) -> None:
    """The claim, and the mistake that is planted."""
    claim, s = audited.claim, audited.subject.base.settings
    console.print(
        f"claim of {audited.source}: {s.workload}, method {s.method}, epsilon {claim.epsilon:.3f} at delta "
        f"{claim.delta:g} for {claim.steps} steps at q = {claim.sample_rate:.4g}, sigma_eff "
        f"{claim.noise_multiplier:.4g}; mode {mode}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if audited.not_private is not None:
        console.print(audited.not_private, style="bold red", highlight=False, markup=False, soft_wrap=True)
    if plant is not None:
        text = f"planted: {plant}. The mechanism that runs is not the claimed one; the audit does not know it."
        console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)


def show(verdict: Verdict, canaries: int, mode: str, console: Console, *, not_private: str | None = None) -> None:
    """The figures, the checks, the threat model, and the verdict last; ``not_private`` says why a claim is void."""
    print_table(figures(verdict, canaries, not_private), console)
    for check in verdict.checks:
        mark, style = ("passed", "dim") if check.passed else ("FAILED", "bold red")
        console.print(f"{mark}  {check.name}: {check.says}", style=style, markup=False, highlight=False, soft_wrap=True)
    console.print(f"threat model: {THREATS[mode]}", markup=False, highlight=False)
    if verdict.falsified:
        text = f"falsified by: {', '.join(verdict.reasons)}"
        console.print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)
    else:
        console.print("not falsified", style="bold", markup=False, highlight=False)


def figures(verdict: Verdict, canaries: int, not_private: str | None) -> Table:
    """The claimed epsilon, the bounds from below, and the estimate."""
    void = "" if not_private is None else f"; {not_private}"
    confidence = f"{100 * (1 - SIGNIFICANCE):g} %"
    rows = [("claimed", f"{verdict.claim.epsilon:.3f}", f"at delta {verdict.claim.delta:g}{void}")]
    for name, bound in (("one-run bound", verdict.one_run), ("f-DP one-run bound", verdict.f_dp)):
        g = bound.guesses
        text = f"{g.correct} of {g.guesses} guesses right, {canaries} canaries, {confidence} confidence"
        rows.append((name, f">= {bound.epsilon:.3f}", text))
    mu, e = verdict.estimate.mu, verdict.estimate.epsilon
    text = f"mu {mu.value:.3f}, epsilon {e.low:.3f} to {e.high:.3f} at 95 %; an estimate, no bound"
    rows.append(("GDP estimate", f"{e.value:.3f}", text))
    return Table(columns=("figure", "epsilon", "evidence"), rows=tuple(Row(cells=cells) for cells in rows), left=(0, 2))
