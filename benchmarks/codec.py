"""Costs of codecs: bits a value, speed of pack and unpack, the decoder's error, accuracy on digits.

    python -m benchmarks.codec --out docs/results/codec.json [--seeds 3] [--count 2000000] [--only grid|indices|digits]

Bits are compared with the empirical entropy of the integers that are sent, block by block: without conditions, and
given the class of the dither, which a coder that knows the dither can reach. Seconds are CPU seconds of one thread.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.pairs import machine
from fedlsg.frame import Block, Keep
from fedlsg.payload import COMPACT, Codec, Dither, Expected, encode_indices, find_codec, pack, quantize, unpack
from fedlsg.payload.codecs.noise_floor import CODEC as NOISE_FLOOR
from fedlsg.payload.codecs.noise_floor import NoiseFloor, dither_classes

SEED, ROUND, SIGMA = 0, 1, 1.7
SIGNAL = (0.0, 0.3, 1.0, 3.0)
"""Deviation of the signal in each block, in units of the noise's deviation."""


def entropy(symbols: np.ndarray) -> float:
    """Empirical entropy in bits of all symbols together (not a symbol)."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def make_values(count: int, seed: int, signals: Sequence[float]) -> tuple[Tensor, list[Block]]:
    """Noisy values in blocks whose signals differ, float32."""
    generator = torch.Generator().manual_seed(seed)
    size = count // len(signals)
    parts = [SIGMA * math.hypot(1, signal) * torch.randn(size, generator=generator) for signal in signals]
    blocks = [Block(parameter=str(i), part="dense", shape=(size,)) for i in range(len(signals))]
    return torch.cat(parts), blocks


def floor(step: float) -> NoiseFloor:
    """The codec noise-floor at one grid step."""
    return NOISE_FLOOR.with_settings({"noise_floor_step": step})


def grid_row(codec: Codec, count: int, repeats: int, *, signals: Sequence[float] = SIGNAL) -> dict[str, Any]:
    """Bits, speed and error of one codec."""
    values, blocks = make_values(count, SEED, signals)
    count = len(values)
    dither = Dither(seed=SEED, client=0, noise_std=SIGMA)
    indices, common = torch.arange(count), {"size": count, "round": ROUND, "digest": bytes(32), "codec": codec}
    expected = Expected(**common, index_mode="derived", indices=indices, blocks=blocks, dither=dither)  # type: ignore[arg-type]
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        message = pack(values, indices, blocks=blocks, dither=dither, **common)  # type: ignore[arg-type]
        received = unpack(message, expected)
        seconds.append(time.process_time() - start)
    error = (received.double() - values.double()).numpy() / SIGMA
    found = {
        "codec": codec.name,
        "signals": signals,
        "values": count,
        "bits": 8 * len(message) / count,
        "million_values_a_minute": count / statistics.median(seconds) * 60 / 1e6,
        "error_mean": float(error.mean()),
        "error_mean_standard_error": float(error.std() / math.sqrt(count)),
        "error_variance": float(error.var()),
        "error_value_correlation": float(np.corrcoef(error, values.numpy())[0, 1]) if error.any() else 0.0,
    }
    return found | (grid_entropy(values, blocks, dither, codec) if isinstance(codec, NoiseFloor) else {})


def grid_entropy(values: Tensor, blocks: Iterable[Block], dither: Dither, codec: NoiseFloor) -> dict[str, Any]:
    """Entropy of the integers sent, and the expected variance of the error."""
    levels = dither.draw(ROUND, len(values))
    symbols, kinds = quantize(values.numpy(), codec.width(dither), levels), dither_classes(levels)
    plain = given = 0.0
    start = 0
    for block in blocks:
        inside = slice(start, start + block.kept)
        plain += entropy(symbols[inside])
        given += sum(entropy(symbols[inside][kinds[inside] == kind]) for kind in np.unique(kinds))
        start += block.kept
    return {
        "step": codec.noise_floor_step,
        "entropy": plain / len(values),
        "entropy_given_dither": given / len(values),
        "predicted_variance": codec.added_variance,
    }


def index_rows() -> list[dict[str, Any]]:
    """Bytes of explicit indices, compared with 4 bytes each, for the masks of the recipes."""
    generator, shape = torch.Generator().manual_seed(SEED), (512, 512)
    rows = []
    for name, share in (("uniform", 0.5), ("uniform", 0.05), ("uniform", 0.001), ("rows", 0.5), ("rows", 0.01)):
        if name == "uniform":
            keep = Keep(index=(torch.rand(shape, generator=generator).flatten() < share).nonzero().squeeze(1))
        else:
            keep = Keep(axis=0, index=(torch.rand(shape[0], generator=generator) < share).nonzero().squeeze(1))
        positions = keep.positions(shape)
        sent = len(encode_indices(positions, [shape]))
        rows.append(
            {"mask": name, "kept": share, "values": len(positions), "bytes": sent, "uint32": 4 * len(positions)}
        )
    return rows


def digits(seeds: int, variants: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Accuracy and uplink of every codec over seeds; batches and noise are secret and differ in every repetition."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, options in variants.items():
            runs = [digits_run(Path(folder) / f"{name}-{seed}", seed, options) for seed in range(seeds)]
            messages = runs[0]["rounds"] * runs[0]["clients"]
            accuracies = [100 * run["accuracy"] for run in runs]
            row = {
                "codec": name,
                "accuracies": accuracies,
                "accuracy": statistics.mean(accuracies),
                "sd": statistics.stdev(accuracies) if seeds > 1 else None,
                "epsilon_max": max(run["epsilon_max"] for run in runs),
                "uplink_bytes_a_message": statistics.mean(run["uplink_bytes"] / messages for run in runs),
                "dense_over_it": statistics.mean(run["uplink_bytes_dense"] / run["uplink_bytes"] for run in runs),
                "wire_bytes_a_message": statistics.mean(run["uplink_bytes_wire"] / messages for run in runs),
            }
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def digits_run(out: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """Summary of one ``fedlsg run``."""
    command = [sys.executable, "-m", "simulations", "run", "digits", "--method", "lsg", "--epsilon", "8"]
    command += ["--engine", "local", "--seed", str(seed), "--out", str(out), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


VARIANTS = {
    "float32": ["--codec", "float32"],
    "noise-floor 0.5": ["--codec", "noise-floor"],
    "noise-floor 1": ["--codec", "noise-floor", "-c", "noise-floor-step=1"],
    "int8": ["--codec", "int8"],
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("grid", "indices", "digits"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = " ".join(["python -m benchmarks.codec", *sys.argv[1:]])
    found: dict[str, Any] = {
        "header_bytes": COMPACT.size,
        "machine": machine() | {"command": command},
    }
    if options.only in (None, "grid"):
        count, repeats, steps = options.count, options.repeats, (0.25, 0.5, 1.0, 2.0)
        found["grid"] = [grid_row(floor(a), count, repeats, signals=s) for s in ((0.0,), SIGNAL) for a in steps]
        found["grid"] += [grid_row(find_codec(name), count, repeats) for name in ("int8", "float32")]
    if options.only in (None, "indices"):
        found["indices"] = index_rows()
    if options.only in (None, "digits"):
        found["digits"] = digits(options.seeds, VARIANTS)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        before = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps(before | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
