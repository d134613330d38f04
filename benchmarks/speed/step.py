"""Seconds of one training step: the plain step, its floor, fedlsg's private steps, and other
libraries' steps.

    python -m benchmarks.speed.step --json FILE [--threads 1,2] [--pairs 30] [--models ...] [--arms
    ...] [--batch 16] python -m benchmarks.speed.step --json FILE --device cuda --models wrn-28-4
    --batch 1000 python -m benchmarks.speed.step --json FILE --device cuda --models roberta-base
    --batch 256

The rounds are interleaved. The plain step and ours are measured in both memory formats: compare
with the better one. Opacus' arms need the package opacus. An arm that cannot run, or whose batch
does not fit into the device's memory, is left out, and the reason is printed. On a device an arm's
peak is the memory that torch allocates there.
"""

from argparse import ArgumentParser
from collections.abc import Mapping
from functools import partial

import torch

from benchmarks.pairs import interleave, parser, summary, table, write
from benchmarks.speed.arms import ON_REQUEST, OURS, Step, in_channels_last
from benchmarks.speed.rivals import RIVALS
from benchmarks.speed.subjects import SMALL, SUBJECTS, Subject, on_device
from benchmarks.speed.work import flops, work_table

ARMS = OURS | RIVALS
CHANNELS_LAST = ("plain", "floor", "lsg p=0", "lsg p=.5")
REFERENCES = ("plain", "plain, channels last", "plain, bfloat16", "opacus hooks", "opacus ghost")


def arms_of(subject: Subject, names: list[str]) -> dict[str, Step]:
    """The arms that run on the subject; images have some of them in channels_last, too."""
    makers = {name: partial((ARMS | ON_REQUEST)[name], subject) for name in names}
    if subject.inputs.ndim == 4:
        turned = in_channels_last(subject)
        makers |= {
            f"{name}, channels last": partial(ARMS[name], turned)
            for name in CHANNELS_LAST
            if name in names
        }
    steps = {}
    for name, make in makers.items():
        try:
            step = make()
            step()
        except (ImportError, NotImplementedError, torch.OutOfMemoryError) as error:
            print(f"{name}: left out, {type(error).__name__}: {error}", flush=True)
        else:
            steps[name] = step
    return steps


def device_peaks(steps: Mapping[str, Step], device: torch.device) -> dict[str, float]:
    """Peak MB (10^6 bytes) that each arm's step takes of a CUDA device over what all arms hold
    there; none on a CPU.
    """
    peaks = {}
    for name, step in steps.items() if device.type == "cuda" else ():
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        peaks[name] = (torch.cuda.max_memory_allocated(device) - before) / 1e6
    return peaks


def device_of(name: str, options: ArgumentParser) -> torch.device:
    """The device; exits with advice if torch does not find it."""
    if name == "cuda" and not torch.cuda.is_available():
        options.error(
            "--device cuda: torch finds no CUDA device on this machine; leave --device out to "
            "measure the CPU"
        )
    return torch.device(name)


def name_of(device: torch.device) -> str:
    """The device's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", default=list(SMALL), choices=list(SUBJECTS))
    options.add_argument("--arms", nargs="+", default=list(ARMS), choices=[*ARMS, *ON_REQUEST])
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    chosen = options.parse_args()
    device = device_of(chosen.device, options)
    settle = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    results = []
    for threads in chosen.threads if device.type == "cpu" else (torch.get_num_threads(),):
        torch.set_num_threads(threads)
        for model in chosen.models:
            steps = arms_of(on_device(SUBJECTS[model](chosen.batch), device), chosen.arms)
            found = summary(
                interleave(steps, pairs=chosen.pairs, warmup=chosen.warmup, settle=settle),
                REFERENCES,
            )
            counted = {name: flops(step) for name, step in steps.items()}
            peaks = device_peaks(steps, device)
            print(
                f"\n## {model}, batch {chosen.batch}, {threads} thread(s), {chosen.pairs} rounds\n",
                flush=True,
            )
            print(table(found, "plain"), work_table(found, counted), sep="\n\n", flush=True)
            results.append(
                {"model": model, "batch": chosen.batch, "threads": threads, "arms": found}
            )
            results[-1] |= {"device": name_of(device), "flop": counted, "device_peak_mb": peaks}
            write(chosen.json, {"benchmark": "step", "pairs": chosen.pairs, "results": results})


if __name__ == "__main__":
    main()
