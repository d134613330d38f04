"""Operations on a GPU, bytes that they read and write, and waits of the host in one step, counted
without a GPU.

    python -m benchmarks.speed.launches [--json FILE] [--models wrn-28-4] [--arms "lsg p=0" dpsgd]
    [--batch 64]

The step runs on a pretended CUDA device (``tests/fedlsg/support/pretend_cuda.py``): arithmetic is
on the CPU, and every operation of torch counts. An operation is mostly one launch; views are none.
Bytes are those of its operands and results, with the copy in float64 that CUDA's reductions write
first. A wait is an operation whose result the host reads, or a copy from memory that is not pinned.
Nothing here is a time.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from benchmarks.speed.arms import OURS
from benchmarks.speed.subjects import SUBJECTS, on_device
from tests.fedlsg.support.pretend_cuda import Checked, marked, pretended_cuda

WIDE = (torch.float64, torch.float32)


class Counting:
    """Launches and bytes of a step, by the name of the operation."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add an operation, unless it is a view or nothing of it is on the device."""
        if func.is_view:
            return
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
        there = [t for t in tensors if t.layout == torch.strided and marked(t)]
        if not there:
            return
        name = func.name().split(".")[0]
        self.launches[name] += 1
        self.bytes[name] += sum(t.nbytes for t in there)
        if (kwargs or {}).get("dtype") == WIDE[0] and there[0].dtype == WIDE[1]:
            self.bytes[name] += 2 * 8 * there[0].numel()


def counted(step: Callable[[], Callable[[], object]]) -> dict[str, Any]:
    """Counts of the second step: the first one prepares."""
    counting = Counting()
    plain = Checked.__torch_dispatch__

    def dispatch(self: Checked, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = plain(self, func, types, args, kwargs)
        counting.count(func, args, kwargs, result)
        return result

    with pytest.MonkeyPatch.context() as patch, pretended_cuda(patch) as device:
        run = step()
        run()
        patch.setattr(Checked, "__torch_dispatch__", dispatch)
        device.waits.clear()
        run()
        waits = +device.waits
    most = counting.bytes.most_common(5)
    return {
        "launches": counting.launches.total(),
        "gigabytes": counting.bytes.total() / 1e9,
        "waits": dict(waits),
        "most_bytes": {name: size / 1e9 for name, size in most},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, print a table, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["wrn-28-4"], choices=list(SUBJECTS))
    parser.add_argument("--arms", nargs="+", default=["plain", "lsg p=0", "dpsgd"], choices=[*OURS])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found = []
    for model in options.models:
        print(
            f"\n## {model}, batch {options.batch}\n\n"
            "| step | launches | GB | waits |\n|---|---|---|---|"
        )
        for arm in options.arms:
            result = counted(
                lambda arm=arm, model=model: OURS[arm](
                    on_device(SUBJECTS[model](options.batch), torch.device("cuda", 0))
                )
            )
            waits = sum(result["waits"].values())
            print(
                f"| {arm} | {result['launches']} | {result['gigabytes']:.2f} | {waits} |",
                flush=True,
            )
            found.append({"model": model, "batch": options.batch, "arm": arm, **result})
    if options.json:
        options.json.write_text(json.dumps({"benchmark": "launches", "results": found}, indent=1))


if __name__ == "__main__":
    main()
