"""What machine a result was measured on."""

import os
import platform
from pathlib import Path

import torch


def hardware(device: str = "cpu") -> dict[str, str | int]:
    """Processor, cores that this process may use, system, and the graphics card of a run on one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found: dict[str, str | int] = {
        "processor": _processor(),
        "cores": usable,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next((name for name in names if name), platform.processor() or platform.machine())
