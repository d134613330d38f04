"""Nanoseconds a value of the noise, next to torch's generator, which is not secret, nor exact.

python -m benchmarks.speed.noise [--values 1000 62000 1000000 20000000] [--threads 1] [--pairs 15]
"""

import time
from argparse import ArgumentParser
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from fedlsg.noise import add_gaussian
from fedlsg.randomness import secret_stream


def seconds(draw: Callable[[Tensor], Tensor], total: Tensor) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    draw(total)
    return time.perf_counter() - start


def main() -> None:
    """One line a size: medians of interleaved calls."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--values", type=int, nargs="+", default=[1000, 62_000, 10**6, 2 * 10**7])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--pairs", type=int, default=15)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    stream = secret_stream()
    arms: dict[str, Callable[[Tensor], Tensor]] = {
        "exact": lambda total: add_gaussian(total, 1.0, stream),
        "torch": lambda total: total + torch.randn_like(total),
    }
    for values in chosen.values:
        total = torch.zeros(values)
        rounds = [
            {name: seconds(draw, total) for name, draw in arms.items()}
            for _ in range(chosen.pairs + 1)
        ]
        found = {name: median(r[name] for r in rounds[1:]) / values * 1e9 for name in arms}
        print(
            f"{values:>10,} values: "
            + ", ".join(f"{name} {ns:.1f} ns" for name, ns in found.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
