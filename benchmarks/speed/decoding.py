"""How long a step waits for images that workers decode ahead of it: a made-up folder of JPEGs.

    python -m benchmarks.speed.decoding [--json FILE] [--images 20000] [--workers 1] [--batches 8]
    [--step 1.5]

The folder has small pictures under the layout of ``imagenet``. A step here is a sleep of ``--step``
times what one worker takes to decode its rows, which is measured before each batch, for other
programs may share the machine. Batches are Poisson samples of q = .0128, groups, microbatch and
fetch are those of a run. What is counted as waiting is all of the time in the fetch: workers, their
pipes, and from 8 bits to float32.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedlsg.privacy import poisson_batch
from fedlsg.randomness import secret_stream
from fedlsg.simulations.client.drawing import batches, groups
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.with_preset import resolve

CLASSES, MEASURED, WIDTH, HEIGHT = 10, 48, 160, 120


def make_folder(root: Path, images: int) -> None:
    """train/CLASS/*.JPEG and val/CLASS/*.JPEG, all of them pictures of their own."""
    draw = np.random.default_rng(0)
    for split, count in (("train", images), ("val", 2 * CLASSES)):
        for number in range(count):
            folder = root / split / f"n{number % CLASSES}"
            folder.mkdir(parents=True, exist_ok=True)
            coarse = draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((WIDTH, HEIGHT))
            picture.save(folder / f"{number}.JPEG")


def decoding_seconds(base: Base) -> float:
    """Seconds in which one worker decodes a row, now."""
    assert base.rows.ahead is not None
    rows = np.arange(MEASURED)
    base.rows.ahead.workers.open()
    began = time.perf_counter()
    base.rows.ahead.expect(rows, MEASURED)
    base.rows.ahead[rows]
    return (time.perf_counter() - began) * base.rows.ahead.workers.count / MEASURED


def waiting(base: Base, factor: float) -> tuple[float, float]:
    """Seconds of a batch in which its step waited, and all of its seconds."""
    row = decoding_seconds(base)
    batch, split = batches(base, 0, 1, []), groups(base, 0)
    positions = poisson_batch(len(base.parts[0]), base.local.sample_rate, secret_stream())
    waited, began = 0.0, time.perf_counter()
    for group in split(positions):
        for micro in group.split(base.local.microbatch_size):
            start = time.perf_counter()
            batch(micro)
            waited += time.perf_counter() - start
            time.sleep(factor * row * len(micro))
    return waited, time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folder, measure batches, print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--step", type=float, default=1.5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        make_folder(Path(root), options.images)
        given = {"workload": "imagenet", "data_dir": root, "model": "cnn", "clients": 1}
        more = {"method": "dpsgd", "loader_workers": options.workers}
        base = make_plan(resolve({**given, **more}))
        found = [waiting(base, options.step) for _ in range(options.batches)]
        if base.rows.ahead is not None:
            base.rows.ahead.workers.close()
    shares = [waited / whole for waited, whole in found]
    print(
        f"{options.images:,} images, {options.workers} workers, a microbatch of "
        f"{base.local.microbatch_size}, a step of {options.step:g} times one worker's decoding: "
        f"waiting takes {statistics.median(shares):.1%} (median of {len(shares)} batches, "
        f"{min(shares):.1%} to {max(shares):.1%})"
    )
    if options.json:
        options.json.write_text(json.dumps({"benchmark": "decoding", "waiting": shares}, indent=1))


if __name__ == "__main__":
    main()
