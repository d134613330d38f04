"""How far one example moves the clipped sum: with the old code (planted) and with the present code.

    FEDLSG_DATA=DATA python -m benchmarks.sensitivity --out docs/results/sensitivity.json

SST-2 with MiniLM, method bitfit, C = 0.05 (every text is clipped), and aligned gradients. All random
numbers come from the seeds in this file. Takes about a quarter of an hour on one core.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.adversaries import Case, align, float32_over_microbatches, padded_to_the_longest, summed_in
from benchmarks.neighbours import BOUND, Subject, move, subject
from benchmarks.pairs import machine
from fedlsg.gradients import Precision, per_example_gradients
from simulations import workloads
from simulations.workloads import LoadedWorkload

SEED = 0
SHORT, LONG, PAIRS = 7, 40, 6
SIZES = (1, 2, 7, 8, 16, 24, 31, 32)
PRECISIONS = {
    "float32": Precision(),
    "float32, stored in bfloat16": Precision(activation_storage="bfloat16"),
    "bfloat16": Precision(precision="bfloat16"),
    "bfloat16, stored in bfloat16": Precision(precision="bfloat16", activation_storage="bfloat16"),
}
Planted = Callable[[], AbstractContextManager[object]]


def row(what: str, before: Planted, build: Callable[[], Subject], cases: Iterable[Case]) -> dict[str, Any]:
    """The case with the largest distance, before and after."""
    found: dict[str, Any] = {"what": what}
    chosen = list(cases)
    for when, plant in (("before", before), ("after", nullcontext)):
        with plant():
            some = [move(build(), *case) for case in chosen]
        found[when] = {"moved": max(m.moved for m in some), "neighbours": max(m.neighbours for m in some)}
    print(json.dumps(found), flush=True)
    return found


def text_rows(sst2: LoadedWorkload) -> list[dict[str, Any]]:
    """SST-2: ordinary texts, and copies of a short one with one long text."""
    generator = torch.Generator().manual_seed(SEED)
    lengths = sst2.train.lengths
    assert lengths is not None
    short, long = ((lengths == n).nonzero().squeeze(1)[:PAIRS].tolist() for n in (SHORT, LONG))
    rows = []
    for name, precision in PRECISIONS.items():
        for microbatch, pairs in ((32, PAIRS), (256, 1)):

            def build(precision: Precision = precision, microbatch: int = microbatch) -> Subject:
                given: dict[str, Any] = {"clip_norm": 0.05, "microbatch_size": microbatch, "model": "minilm"}
                return subject(sst2, "bitfit", precision=precision, **given)

            if microbatch == 32:
                drawn = torch.randperm(len(sst2.train), generator=generator)[:64].tolist()
                farthest = max(range(64), key=lambda place: int(lengths[drawn[place]]))
                rows.append(
                    row(f"{name}: 64 texts, the longest leaves", padded_to_the_longest, build, [(drawn, farthest)])
                )
            cases = [([a] * (microbatch - 1) + [b], microbatch - 1) for a, b in zip(short, long, strict=True)][:pairs]
            what = f"{name}: {microbatch - 1} copies of {SHORT} tokens, one text of {LONG} leaves"
            rows.append(row(what, padded_to_the_longest, build, cases))
    return rows


def sum_rows() -> list[dict[str, Any]]:
    """Aligned gradients in half precision and in float32."""
    half = [(dtype, examples) for dtype in (torch.bfloat16, torch.float16) for examples in (512, 1024, 4096)]
    rows = []
    for dtype, examples in [*half, *((torch.float32, examples) for examples in (32, 256, 1024, 50_000))]:
        before = float32_over_microbatches if dtype == torch.float32 else partial(summed_in, dtype)
        for even in (False, True):
            cases = [(list(range(examples)), place) for place in (0, examples - 1)]
            what = f"{examples} aligned gradients, {dtype}, {'equal coordinates' if even else 'random direction'}"
            rows.append(row(what, before, partial(align, examples, dtype, even=even), cases))
    return rows


def rounding_rows(sst2: LoadedWorkload) -> list[dict[str, Any]]:
    """How another number of rows changes a row's clipped gradient at one padded length; largest change, in C."""
    lengths = sst2.train.lengths
    assert lengths is not None
    rows = []
    texts = (lengths == 16).nonzero().squeeze(1)[: max(SIZES)]
    for name, precision in PRECISIONS.items():
        made = subject(sst2, "lsg", precision=precision, clip_norm=0.05, model="minilm")
        inputs, targets = sst2.train.batch(texts)

        def clip(size: int, made: Subject = made, inputs: Any = inputs, targets: Any = targets) -> torch.Tensor:
            some = {key: t[:size] for key, t in inputs.items()}
            blocks = per_example_gradients(
                made.model, made.loss_fn, some, targets[:size], made.frame, precision=made.local.precision
            )
            return torch.nn.functional.normalize(torch.cat(blocks, 1).double(), dim=1)

        whole = clip(max(SIZES))
        moved = {size: float((clip(size) - whole[:size]).norm(dim=1).max()) for size in SIZES}
        rows.append({"what": f"MiniLM lsg, {name}", "farthest_row_by_size": moved})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    sst2 = workloads.load("glue-sst2")
    command = "python -m benchmarks.sensitivity --out docs/results/sensitivity.json"
    found = {
        "unit": "C", "bound": 1 + BOUND, "seed": SEED, "machine": machine() | {"command": command},
        "sums": sum_rows(), "texts": text_rows(sst2), "rows": rounding_rows(sst2),
    }  # fmt: skip
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
