"""Time of Python's start and of imports in each kind of process of a run, by package.

Times are CPU seconds of fresh processes, as the kernel counts them for a child that has ended. The shares of packages
are wall times, from another process under ``-X importtime``.
"""

import os
import re
import resource
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUBJECTS = {
    "fedlsg --help": ["-m", "simulations", "--help"],
    "import torch": ["-c", "import torch"],
    "import fedlsg": ["-c", "import fedlsg"],
    "import strategies": ["-c", "import strategies"],
    "import simulations.cli.app": ["-c", "import simulations.cli.app"],
    "import simulations.run": ["-c", "import simulations.run"],
    "import simulations.client.app": ["-c", "import simulations.client.app"],
    "import simulations.engines.ray": ["-c", "import simulations.engines.ray"],
    "import simulations.server.app": ["-c", "import simulations.server.app"],
    "import flwr.simulation": ["-c", "import flwr.simulation"],
    "import flwr.cli.app": ["-c", "import flwr.cli.app"],
    "import flwr.superlink.cli": ["-c", "import flwr.superlink.cli"],
}
TOP = 5
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")


def measure_imports(checkout: Path, *, runs: int) -> dict[str, dict[str, Any]]:
    """CPU seconds of every subject that this checkout has, and its packages by seconds of their own."""
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    found = {}
    for name, arguments in SUBJECTS.items():
        command = [sys.executable, "-P", *arguments]
        if subprocess.run(command, env=env, capture_output=True, check=False).returncode != 0:
            continue  # an older checkout lacks the module
        seconds = [_cpu(command, env) for _ in range(runs)]
        found[name] = {"cpu": statistics.median(seconds), "all": seconds, "packages": packages(arguments, env)}
    return found


def _cpu(command: list[str], env: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def packages(arguments: list[str], env: Mapping[str, str]) -> dict[str, float]:
    """The packages that took longest to import, with their own seconds."""
    command = [sys.executable, "-P", "-X", "importtime", *arguments]
    text = subprocess.run(command, env=env, capture_output=True, check=True, text=True).stderr
    own: Counter[str] = Counter()
    for microseconds, module in LINE.findall(text):
        own[module.partition(".")[0]] += int(microseconds)
    return {name: total / 1e6 for name, total in own.most_common(TOP)}


def import_table(by_checkout: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Markdown, a row for each subject; the packages are those of the last checkout."""
    names = list(by_checkout)
    lines = ["| process |" + "".join(f" {name}, CPU s |" for name in names) + " longest packages, s |"]
    lines.append("|---|" + "---|" * (len(names) + 1))
    for subject in SUBJECTS:
        own = [by_checkout[name].get(subject) for name in names]
        cells = "".join(f" {found['cpu']:.2f} |" if found else " – |" for found in own)
        last = own[-1]
        longest = ", ".join(f"{name} {s:.2f}" for name, s in last["packages"].items()) if last else ""
        lines.append(f"| `{subject}` |{cells} {longest} |")
    return "\n".join(lines)
