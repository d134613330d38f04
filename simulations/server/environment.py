"""Where a result was measured: the machine, and the versions of what it depends on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("fedlsg", "torch", "flwr", "ray", "numpy", "scipy", "prv-accountant", "dp-accounting")


def hardware(device: str = "cpu") -> dict[str, str | int]:
    """Processor, cores that this process may use, system, and the graphics card if the run used one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found: dict[str, str | int] = {
        "processor": _processor(),
        "cores": usable,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next((name for name in names if name), platform.processor() or platform.machine())
