"""Seconds of one training step: plain, its floor, fedlsg's private steps, and other libraries'.

    python -m benchmarks.step --json FILE [--threads 1,2] [--pairs 30] [--models ...] [--arms ...] [--batch 16]

Interleaved (pairs.py). The plain step is measured in both memory formats, and so is ours: compare with the better one.
Opacus' arms need the package opacus; an arm that cannot run is named with the reason and left out.
"""

from functools import partial

import torch

from benchmarks.arms import OURS, Step, in_channels_last
from benchmarks.pairs import interleave, parser, summary, table, write
from benchmarks.rivals import RIVALS
from benchmarks.subjects import SUBJECTS, Subject

ARMS = OURS | RIVALS
CHANNELS_LAST = ("plain", "floor", "lsg p=0", "lsg p=.5")
REFERENCES = ("plain", "plain, channels last", "opacus hooks", "opacus ghost")


def arms_of(subject: Subject, names: list[str]) -> dict[str, Step]:
    """The arms that run on the subject; images have some of them in channels_last, too."""
    makers = {name: partial(ARMS[name], subject) for name in names}
    if subject.inputs.ndim == 4:
        turned = in_channels_last(subject)
        makers |= {f"{name}, channels last": partial(ARMS[name], turned) for name in CHANNELS_LAST if name in names}
    steps = {}
    for name, make in makers.items():
        try:
            step = make()
            step()
        except (ImportError, NotImplementedError) as error:
            print(f"{name}: left out, {type(error).__name__}: {error}", flush=True)
        else:
            steps[name] = step
    return steps


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", default=list(SUBJECTS), choices=list(SUBJECTS))
    options.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    options.add_argument("--batch", type=int, default=16)
    chosen = options.parse_args()
    results = []
    for threads in chosen.threads:
        torch.set_num_threads(threads)
        for model in chosen.models:
            steps = arms_of(SUBJECTS[model](chosen.batch), chosen.arms)
            found = summary(interleave(steps, pairs=chosen.pairs, warmup=chosen.warmup), REFERENCES)
            print(f"\n## {model}, batch {chosen.batch}, {threads} thread(s), {chosen.pairs} rounds\n", flush=True)
            print(table(found, "plain"), flush=True)
            results.append({"model": model, "batch": chosen.batch, "threads": threads, "arms": found})
            write(chosen.json, {"benchmark": "step", "pairs": chosen.pairs, "results": results})


if __name__ == "__main__":
    main()
