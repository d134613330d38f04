"""A client with digits: its model of 64, some and 10 units with tanh, its payload, and reports in
Markdown.
"""

import argparse
import math
import platform
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg.attacks.observation import Observation
from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, Method, client_step
from fedlsg.randomness import reproducible_stream


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss an example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def network(seed: int, hidden: int) -> nn.Module:
    """(B, 1, 8, 8) -> 64 -> hidden -> 10 in float64, with tanh."""
    torch.manual_seed(seed)
    layers = OrderedDict(
        flatten=nn.Flatten(),
        hidden=nn.Linear(64, hidden),
        activation=nn.Tanh(),
        classifier=nn.Linear(hidden, 10),
    )
    return nn.Sequential(layers).double()


def payload(
    method: Method,
    model: nn.Module,
    frame: Frame,
    batch: tuple[Tensor, Tensor],
    *,
    seed: int,
    **local: Any,
) -> Observation:
    """What a client sends that takes all of these examples. ``local``: of its training, if not
    their number and 1.
    """
    x, y = batch
    training = LocalTraining(**{"expected_batch": float(len(y)), **local})
    values = client_step(
        model,
        lambda rows: (x[rows], y[rows]),
        cross_entropy,
        frame=frame,
        mechanism=method.mechanism,
        local=training,
        num_examples=len(y),
        sampler=reproducible_stream(seed, "sampler"),
        charge=lambda: None,
        noise=reproducible_stream(seed, "noise"),
    )
    return Observation(
        model=model,
        loss_fn=cross_entropy,
        frame=frame,
        values=values,
        mechanism=method.mechanism,
        local=training,
        noise_std=method.mechanism.noise_std if method.mechanism.adds_noise else 0.0,
    )


def report(
    doc: str | None, lines: Callable[..., Iterable[str]], *, words: str = "", **more: int
) -> None:
    """Run, print, write. ``lines``: of the table, given the options: seeds, and ``more`` with their
    defaults.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    for name, default in {"seeds": 20, **more}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = vars(parser.parse_args())
    out, seeds = given.pop("out"), given["seeds"]
    torch.set_num_threads(1)
    start, found = time.monotonic(), []
    for line in lines(**given):
        print(line, flush=True)
        found.append(line)
    minutes = math.ceil((time.monotonic() - start) / 60)
    name = f"python -m benchmarks.privacy.{Path(sys.argv[0]).stem}"
    command = " ".join([name, *(f"--{option} {value}" for option, value in given.items())])
    found += [
        "",
        f"Seeds 0 to {seeds - 1}{words.format(**given)}; {platform.machine()}, one thread of a "
        f"2-core virtual machine, no GPU, {minutes} minutes; torch {torch.__version__}. Command: "
        f"`{command}`",
    ]
    if out is not None:
        out.write_text("\n".join(found) + "\n")
