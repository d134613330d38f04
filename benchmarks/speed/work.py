"""The operations of a step, and how close its time is to the floor."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.flop_counter import FlopCounterMode


def flops(step: Callable[[], object]) -> int:
    """Floating-point operations of one step's products: matrices, convolutions, attention. Runs one
    more step.

    A multiplication and an addition are two. Kernels that torch has no formula for (oneDNN's own
    linear layers among them, CPU only) count as nothing.
    """
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def work_table(found: Mapping[str, Any], counted: Mapping[str, int], floor: str = "floor") -> str:
    """A Markdown table: every arm's operations, operations a second, and the floor's seconds
    divided by its own.
    """
    lines = [
        "| arm | TFLOP a step | TFLOP/s | floor's seconds / its seconds |",
        "|---|---|---|---|",
    ]
    for name, operations in counted.items():
        seconds = found[name]["wall"]["median"]
        share = f"{found[floor]['wall']['median'] / seconds:.0%}" if floor in found else "–"
        lines.append(
            f"| {name} | {operations / 1e12:.4f} | {operations / 1e12 / seconds:.3f} | {share} |"
        )
    return "\n".join(lines)
