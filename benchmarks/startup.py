"""Where a short ``fedlsg run digits`` spends its time, from the shell's command to its end, and the cost of imports.

    python -m benchmarks.startup --json FILE [--runs 5] [--engines ENGINE ...] [--no-imports] [--against CHECKOUT]

Every run is a fresh process, watched from outside (``process_watch``): when files of the run directory and lines of the
log appear, and when processes start, end, or have torch in memory. Nothing is added to the run. ``--against`` names
another checkout of this repository. Its runs alternate with this one's: before and after under the same load.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.import_times import import_table, measure_imports
from benchmarks.pairs import Estimate, parser, ratios, write
from benchmarks.process_watch import Seen, Watched, watch

HERE = Path(__file__).resolve().parent.parent
TORCH = "libtorch_cpu"
ROLES = {
    "command line": ("-m simulations run",),
    "SuperLink": ("processes.py superlink",),
    "flwr run": ("processes.py client",),
    "SuperExec": ("flower-superexec",),
    "simulation: ServerApp, Ray's driver": ("flwr-simulation",),
    "Ray: gcs": ("/gcs_server ",),
    "Ray: raylet": ("/raylet/raylet ",),
    "Ray: autoscaler's monitor": ("_private/monitor.py",),
    "Ray: dashboard": ("dashboard/dashboard.py",),
    "Ray: log monitor": ("log_monitor.py",),
    "Ray: agents": ("Agent",),
    "workers": ("ray::Worker",),
    "workers, before": ("ClientAppActor",),
}
MARKS = {
    "plan made": "command line: imports, data, noise calibrated",
    "Ray begins": "first process of Ray's",
    "workers begin": "first worker's process",
    "server ready": "imports, plan, model, first checkpoint",
    "workers have torch": "in the last worker's memory",
    "first client done": "its ledger is on disk",
    "first round": "its row is in rounds.csv: the first result",
    "summary": "all rounds are done",
    "report": "report.html",
    "end": "nothing is left, the prompt is back",
}
SAYS = ("output", "run.log")


class Marks:
    """Notes when files and log lines of a run first appear."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.at = folder, dict[str, float]()

    def look(self, now: float) -> None:
        """Called at every look of the watcher."""
        signs: dict[str, Callable[[], bool]] = {
            "plan made": (self.folder / "config.toml").exists,
            "server ready": (self.folder / "checkpoint" / "latest.pt").exists,
            "first client done": lambda: any((self.folder / "ledger").glob("*.jsonl")),
            "first round": lambda: self._lines() >= 2,
            "summary": (self.folder / "summary.json").exists,
            "report": (self.folder / "report.html").exists,
        }
        for name, shows in signs.items():
            if name not in self.at and shows():
                self.at[name] = now

    def _lines(self) -> int:
        path = self.folder / "rounds.csv"
        return path.read_text().count("\n") if path.exists() else 0


def run_once(checkout: Path, engine: str, rounds: int) -> dict[str, Any]:
    """One run: seconds until each mark, CPU seconds of all processes by then, CPU seconds by role."""
    folder = Path(tempfile.mkdtemp(prefix="startup-"))
    marks = Marks(folder / "run")
    command = [sys.executable, "-P", "-m", "simulations", "run", "digits", "--rounds", str(rounds)]
    command += ["--out", str(folder / "run"), *([] if engine == "default" else ["--engine", engine])]
    if engine == "bare":
        command = [sys.executable, "-P", "-m", "benchmarks.bare_start"]
    try:
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        with (folder / "output").open("wb") as output:
            seen = watch(command, env=env, libraries=[TORCH], look=marks.look, output=output)
        if seen.status != 0:
            said = [path.read_text(errors="replace")[-6000:] for path in folder.rglob("*") if path.name in SAYS]
            raise RuntimeError("\n".join([f"expected {command} to succeed, got status {seen.status}", *said]))
    finally:
        shutil.rmtree(folder)
    reached = {name: at - seen.began for name, at in marks.at.items()} | of_processes(seen) | {"end": seen.wall}
    return {
        "wall": {name: reached[name] for name in MARKS if name in reached},
        "cpu": {name: seen.cpu_by(reached[name]) for name in MARKS if name in reached} | {"end": seen.cpu},
        "roles": by_role(seen.processes),
    }


def role(command: str) -> str:
    """The role of a process, by its command line; "other" if unknown."""
    return next((name for name, parts in ROLES.items() if all(part in command for part in parts)), "other")


def by_role(processes: Sequence[Seen]) -> dict[str, float]:
    """CPU seconds by role."""
    found: dict[str, float] = defaultdict(float)
    for process in processes:
        found[role(process.command)] += process.cpu
    return dict(found)


def of_processes(seen: Watched) -> dict[str, float]:
    """The marks that are times of processes: start, end, torch loaded."""
    mine: dict[str, list[Seen]] = defaultdict(list)
    for process in seen.processes:
        mine[role(process.command)].append(process)
    found = {}
    if ray := [p for name, group in mine.items() if name.startswith("Ray") for p in group]:
        found["Ray begins"] = min(p.started for p in ray)
    if workers := mine["workers"] + mine["workers, before"]:
        found["workers begin"] = min(p.started for p in workers)
        found["workers have torch"] = max(p.mapped.get(TORCH, p.last) for p in workers)
    return found


def measure(checkouts: Mapping[str, Path], engine: str, *, runs: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Interleaved runs of every checkout; one run of each, not counted, warms the file cache."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    for turn in range(runs + 1):
        names = list(checkouts)[:: -1 if turn % 2 else 1]
        for name in names:
            result = run_once(checkouts[name], engine, rounds)
            print(f"{engine}, {name}: {result['wall']['end']:.1f} s, CPU {result['cpu']['end']:.1f} s", flush=True)
            if turn:
                found[name].append(result)
    return found


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def timeline(by_checkout: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Markdown: seconds at every mark, and CPU seconds spent by then."""
    head = "".join(f" {name}, s | {name}, CPU s |" for name in by_checkout)
    lines = [f"| reached |{head} what it is |", "|---|" + "---|---|" * len(by_checkout) + "---|"]
    ordered = next(iter(by_checkout.values()))
    for mark, meaning in MARKS.items():
        cells = ""
        for runs in by_checkout.values():
            kinds = [[run[kind][mark] for run in runs if mark in run[kind]] for kind in ("wall", "cpu")]
            cells += "".join(f" {spread(values)} |" if values else " |" for values in kinds)
        if any(mark in run["wall"] for run in ordered):
            lines.append(f"| {mark} |{cells} {meaning} |")
    return "\n".join(lines)


def roles(by_checkout: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Markdown: CPU seconds by kind of process."""
    lines = ["| process |" + "".join(f" {name}, CPU s |" for name in by_checkout), "|---|" + "---|" * len(by_checkout)]
    for kind in [*ROLES, "other"]:
        values = {name: [run["roles"].get(kind, 0.0) for run in runs] for name, runs in by_checkout.items()}
        if any(max(own, default=0.0) > 0 for own in values.values()):
            lines.append(f"| {kind} |" + "".join(f" {spread(own)} |" for own in values.values()))
    return "\n".join(lines)


def gains(by_checkout: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Estimate]:
    """Ratios of this checkout to the other, run by run, for the first round and for the prompt."""
    found = {}
    for mark in ("first round", "end"):
        for kind in ("wall", "cpu"):
            seconds = {name: [run[kind][mark] for run in runs] for name, runs in by_checkout.items()}
            found[f"{mark}, {kind}"] = ratios(seconds, "before")["after"]
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=5, help="measured runs of each kind")
    options.add_argument("--rounds", type=int, default=2)
    engines = ["default", "local", "bare"]
    options.add_argument("--engines", nargs="+", default=engines, choices=engines)
    options.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout to alternate with")
    options.add_argument(
        "--imports", action=argparse.BooleanOptionalAction, default=True, help="also measure the cost of imports"
    )
    given = options.parse_args()
    checkouts = {"now": HERE} if given.against is None else {"before": given.against.resolve(), "after": HERE}
    results: dict[str, Any] = {"imports": {}}
    if given.imports:
        for name, checkout in checkouts.items():
            results["imports"][name] = measure_imports(checkout, runs=given.runs)
        print(import_table(results["imports"]))
    for engine in given.engines:
        found = measure(checkouts, engine, runs=given.runs, rounds=given.rounds)
        results[engine] = {"runs": found}
        print(f"\n{engine}\n\n{timeline(found)}\n\n{roles(found)}", flush=True)
        if given.against is not None:
            results[engine]["after over before"] = {name: vars(one) for name, one in gains(found).items()}
            print("\nafter over before: " + "; ".join(f"{name} {one}" for name, one in gains(found).items()))
    write(given.json, {"startup": results})


if __name__ == "__main__":
    main()
