"""What a user of ``fedlsg audit`` sees: the claim, a bar, the figures and checks, and the verdict last."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedlsg.attacks.audit.verdict import SIGNIFICANCE, Verdict
from simulations.audit.subject import Audited

THREATS = {
    "unit": "The auditor chooses the canaries' gradients, knows the frame, the mask, the clip, sigma and q, and sees "
    "the noised sum of every round of one client; the coins, the batches and the noise are secret. The backward pass, "
    "the wire and the server are not in it; the frame is that of one round.",
    "training": "Canaries are training examples with a wrong label, or images of another kind. The auditor knows every "
    "example, the public state of every round, and sees every payload of each client as it was sent; the coins, the "
    "batches and the noise are secret.",
}


@contextmanager
def progress_bar(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing elsewhere; gives the function that advances it by one."""
    columns = (
        TextColumn(what + " {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def announce(audited: Audited, mode: str, plant: str | None, console: Console) -> None:
    """What is claimed, and what is planted."""
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
        text = f"planted: {plant}. The mechanism that runs is not the claimed one; the audit is not told."
        console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)


def show(verdict: Verdict, canaries: int, mode: str, console: Console, *, not_private: str | None = None) -> None:
    """The figures, the checks, the threat model, and the verdict last; ``not_private`` says why a claim is void."""
    table = Table("figure", "epsilon", "from", box=None, padding=(0, 2, 0, 0))
    void = "" if not_private is None else f"; {not_private}"
    table.add_row("claimed", f"{verdict.claim.epsilon:.3f}", f"at delta {verdict.claim.delta:g}{void}")
    confidence = f"{100 * (1 - SIGNIFICANCE):g} %"
    for name, bound in (("one-run bound", verdict.one_run), ("f-DP one-run bound", verdict.f_dp)):
        g = bound.guesses
        text = f"{g.correct} of {g.guesses} guesses right, {canaries} canaries, {confidence} confidence"
        table.add_row(name, f">= {bound.epsilon:.3f}", text)
    mu, e = verdict.estimate.mu, verdict.estimate.epsilon
    table.add_row(
        "GDP estimate",
        f"{e.value:.3f}",
        f"mu {mu.value:.3f}, epsilon between {e.low:.3f} and {e.high:.3f} at 95 %; an estimate, no bound",
    )
    console.print(table)
    for check in verdict.checks:
        mark, style = ("passed", "dim") if check.passed else ("FAILED", "bold red")
        console.print(f"{mark}  {check.name}: {check.says}", style=style, markup=False, highlight=False, soft_wrap=True)
    console.print(f"threat model: {THREATS[mode]}", markup=False, highlight=False)
    if verdict.falsified:
        text = f"falsified by: {', '.join(verdict.reasons)}"
        console.print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)
    else:
        console.print("not falsified", style="bold", markup=False, highlight=False)
