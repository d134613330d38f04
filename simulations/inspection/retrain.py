"""What noise and clip cost: the run again without noise, and without both. NOT PRIVATE, for simulations only."""

from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from fedlsg.payload import DEFAULT_CODEC
from simulations.engines import local
from simulations.inspection.subject import Subject
from simulations.report.progress import count_bar
from simulations.report.words import duration, percent
from simulations.rundir.files.scratch import scratch
from simulations.rundir.results import Result, read_run
from simulations.rundir.rundir import RunDir
from simulations.server.ready import ready_plan
from simulations.settings.settings import Settings, codec_settings, from_values, values_of
from simulations.workloads.chance import beats_chance, standard_error

DROPPED = {"epsilon", "noise_multiplier", "downlink", "downlink_codec", "run_dir"}
"""Settings of the run that need noise, or a place."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Final accuracies of one run with clip and noise, with the clip alone, and with neither; None if training failed.

    Without the clip it failed if it diverged, or only guesses: the learning rate is too large for longer gradients.
    standard_error: of one of them, from the size of the test split. rho: norm of a step's noise over the clip norm.
    Each is None if it is not on record.
    """

    with_noise: float
    clip_only: float | None
    neither: float | None
    standard_error: float | None
    rho: float | None = None

    @property
    def noise(self) -> float | None:
        """What the noise costs, a share of the test examples; negative if it helps."""
        return None if self.clip_only is None else self.clip_only - self.with_noise

    @property
    def clip(self) -> float | None:
        """What the clip costs at the run's learning rate."""
        return None if self.neither is None or self.clip_only is None else self.neither - self.clip_only


def measure_costs(subject: Subject, console: Console) -> Costs:
    """Train twice more on this process: same seed, rounds and rates, values as float32, nothing of it is kept.

    Raises ValueError without a finished run with clip and noise that has an accuracy.
    """
    result = finished(subject)
    settings = subject.base.settings
    seconds = duration(float(result.summary["wall_seconds"]))
    console.print(f"training twice more, each about as long as the run ({seconds})", highlight=False)
    rounds = subject.base.schedule.rounds
    with count_bar(console, "training, round", 2 * rounds) as tick:
        clip_only, neither = (accuracy(under(settings, kind), tick) for kind in ("clip-only", "none"))
    assert result.accuracy is not None
    if neither is not None and result.chance is not None and not beats_chance([neither], result.chance):
        neither = None
    error = None if result.chance is None else standard_error([result.accuracy], result.chance)
    return Costs(
        with_noise=result.accuracy, clip_only=clip_only, neither=neither, standard_error=error,
        rho=result.summary.get("rho"),
    )  # fmt: skip


def finished(subject: Subject) -> Result:
    """The results of the subject's run. Raises ValueError, with the reason, for one whose noise has no known cost."""
    if subject.run is None:
        raise ValueError("--noiseless trains a finished run again: give the run directory, in place of --workload")
    result, mechanism = read_run(subject.run), subject.base.method.mechanism
    if not (mechanism.clips and mechanism.adds_noise):
        raise ValueError(f"--noiseless needs a run with clip and noise, and this one has mechanism {mechanism.kind!r}")
    if not result.done or result.summary["stopped"]:
        raise ValueError("--noiseless needs a run that trained to its last round: continue it with fedlsg resume first")
    if result.accuracy is None:
        raise ValueError(f"--noiseless compares accuracies, and workload {result.settings['workload']} has none")
    return result


def under(settings: Settings, kind: str) -> Settings:
    """The same run under a mechanism without noise, in one process; its batches repeat with the seed."""
    dropped = DROPPED | codec_settings().keys()
    values = {name: value for name, value in values_of(settings).items() if name not in dropped}
    fixed = {
        "mechanism": kind, "codec": DEFAULT_CODEC, "engine": "local", "reproducible": True, "record_updates": False,
        "evaluate_every": 10**6,
    }  # fmt: skip
    return from_values({**values, **fixed})


def accuracy(settings: Settings, tick: Any) -> float | None:
    """Final accuracy of a run in a folder that is deleted; None if it diverged."""
    plan = ready_plan(settings)
    with scratch() as folder:
        plan = replace(plan, settings=replace(plan.settings, run_dir=str(folder)))
        directory = RunDir(folder)
        directory.write_config(plan.settings)
        summary = local.run(plan, directory, on_round=lambda row: tick(), page=False)
    return None if summary["diverged"] else summary["accuracy"]


def diagnosis(costs: Costs) -> str:
    """One sentence: the three accuracies, what the noise of which rho costs, and what the clip costs."""
    noise = "noise" if costs.rho is None else f"noise (rho {costs.rho:.2f})"
    reached = (
        f"Accuracy {percent(costs.with_noise)} with clip and {noise}, {reach(costs.clip_only)} with the clip alone, "
        f"{reach(costs.neither)} with neither, at the same learning rate"
    )
    words = [f"the noise {costs_of(costs.noise)}", f"the clip {costs_of(costs.clip)}"]
    error = costs.standard_error
    unsure = "" if error is None else f", standard error of each accuracy {100 * error:.1f} points"
    return f"{reached}: {' and '.join(words)} (one seed{unsure})."


def reach(accuracy: float | None) -> str:
    """An accuracy, or that there is none."""
    return "none (training fails)" if accuracy is None else percent(accuracy)


def costs_of(points: float | None) -> str:
    """What something costs or brings, in points."""
    if points is None:
        return "has no known cost"
    return f"{'costs' if points >= 0 else 'brings'} {abs(100 * points):.1f} points"
