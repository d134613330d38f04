"""What every report of runs says in the same words: what its epsilon means, and what the runs ran on."""

from collections.abc import Sequence
from typing import Any

from simulations.rundir.results import Result

PRIVACY = (
    "Epsilon protects one example of one client (adjacency: add or remove it). Each client composes its own steps; the "
    "number is the largest over clients and seeds, never a sum over clients.",
    "A run's epsilon speaks of that run alone. Choosing the best of several cells, or hyperparameters by their "
    "results, costs privacy that is not in any epsilon here; so does publishing several runs on the same data.",
)
PUBLIC_TEST = "Accuracy is measured on a public test split, which no client trains on."
HELD_OUT = (
    "Accuracy is measured on held-out training rows (setting holdout): it is computed from private examples without "
    "noise, and what it tells is in no epsilon. Choose settings with it, and do not publish it as a private result."
)


def privacy(results: Sequence[Result]) -> list[str]:
    """What epsilon means; the last line only where no run measured its accuracy on private rows."""
    return [*PRIVACY, *([] if any(run.held_out for run in results) else [PUBLIC_TEST])]


def facts(done: Sequence[Result]) -> dict[str, str]:
    """Hardware, versions and the like; several values where the runs differ."""

    def of(*path: str) -> str:
        values: list[Any] = []
        for run in done:
            value: Any = run.summary
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            values.append(value)
        return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "not on record"

    if not done:
        return {"runs": "none finished"}
    versions = {name: of("versions", name) for name in done[-1].summary.get("versions", {})}
    seconds = sum(float(run.summary.get("wall_seconds", 0)) for run in done)
    levels = {run.chance for run in done if run.chance is not None}
    return {
        "workload": f"{of('workload')}, model {of('model')}",
        "federation": f"{of('clients')} clients, {of('rounds')} rounds",
        "test split": "; ".join(
            f"{c.test_examples:.0f} examples, {c.num_classes} classes, largest class {100 * c.majority_share:.1f} %: "
            f"chance is {100 * c.level:.1f} %"
            for c in levels
        )
        or "not on record",
        "hardware": f"{of('hardware', 'processor')}, {of('hardware', 'cores')} cores, device {of('device')}, "
        f"{_threads(done)} threads a client step",
        "engine": of("engine"),
        "computing": f"{seconds / 60:.1f} minutes over all finished runs",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _threads(done: Sequence[Result]) -> str:
    return ", ".join(dict.fromkeys(str(run.settings.get("threads", 1)) for run in done))
