"""Memory of one private step on RoBERTa-base's architecture, for every recipe.

    python benchmarks/roberta_step.py --data-dir DIR [--methods lsg dpsgd] [--rank 8]
        [--out docs/results/roberta_step.md]

The weights are random, so only the tokenizer is downloaded; if DIR has ``roberta_bpe``, nothing is. A step is a
client's: derive the frame, per-example gradients of one batch, mask, clip, sum, noise, and encode the values. Peak
memory is the process's high-water mark minus its memory before the step (which includes the model). Each method has a
fresh process. The texts are pieces of this repository's licence of exactly ``--length`` tokens. Pruning before training
(dp-ssgd) is off. Needs Linux, whose kernel lets a process reset its high-water mark.
"""

import argparse
import gc
import json
import platform
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import strategies
from fedlsg.carriers import prepare_model
from fedlsg.carriers.powersgd import encode
from fedlsg.method import LocalTraining, Method, Schedule, client_step
from fedlsg.randomness import secret_stream
from fedlsg.state import PublicState
from simulations.models.encoder import build_encoder
from simulations.models.encoder_source import find_encoder, load_tokenizer
from simulations.workloads.rows.hub import data_root

DENSE = "dpsgd"
LICENCE = Path(__file__).resolve().parents[1] / "LICENSE"


def tokens(data_dir: Path | None, batch: int, length: int) -> dict[str, Tensor]:
    """(batch, length) tokens without padding."""
    tokenizer = load_tokenizer(find_encoder("roberta-base", "none"), data_root(data_dir))
    ids = tokenizer(LICENCE.read_text(), truncation=False, add_special_tokens=False)["input_ids"]
    body = length - 2
    rows = [[tokenizer.bos_token_id, *ids[i * body : (i + 1) * body], tokenizer.eos_token_id] for i in range(batch)]
    input_ids = torch.tensor(rows)  # raises if the licence were too short
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


def recipe(name: str, rank: int) -> Method:
    """The recipe with its own defaults, at the given rank if it has a rank."""
    own = strategies.own_settings(name)
    settings: dict[str, Any] = {"rank": rank} if "rank" in own else {}
    settings |= {"prune": "none"} if "prune" in own else {}
    method = strategies.recipe(name, **settings)
    return replace(method, mechanism=replace(method.mechanism, noise_multiplier=1.0, clip_norm=1.0))


def step(model: nn.Module, method: Method, inputs: dict[str, Tensor], targets: Tensor) -> tuple[int, int]:
    """One client step of the model that the method trains; (values sent, dense values of a frame)."""
    schedule = Schedule(rounds=10, sample_rate=1.0)
    public = PublicState.start(model, method, schedule, seed=0, classifier="classifier")
    frame = public.frame(schedule.rounds, updates=0)
    values = client_step(
        model,
        lambda rows: ({name: tensor[rows] for name, tensor in inputs.items()}, targets[rows]),
        lambda outputs, truth: F.cross_entropy(outputs, truth, reduction="none"),
        frame=frame,
        mechanism=method.mechanism,
        local=LocalTraining(microbatch_size=len(targets)),
        num_examples=len(targets),
        sampler=secret_stream(),
        noise=secret_stream(),
        charge=lambda: None,
    )
    return len(encode(values, frame)), frame.dense_size


def memory(field: str) -> float:
    """A line of /proc/self/status in MB (10^6 bytes): VmRSS now, VmHWM its largest value since the last reset."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024 / 1e6


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds, peak MB above idle and values of one step, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    method = recipe(options.only, options.rank)
    model: nn.Module = build_encoder(find_encoder("roberta-base", "none"), num_classes=2)
    prepare_model(model, method.carrier, classifier="classifier", seed=0)
    inputs = tokens(options.data_dir, options.batch, options.length)
    targets = torch.arange(options.batch) % 2
    with torch.no_grad():  # libraries allocate their own buffers on the first call
        model(**{name: tensor[:1] for name, tensor in inputs.items()})
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    idle, started = memory("VmRSS"), time.perf_counter()
    sent, trained = step(model, method, inputs, targets)
    return {
        "seconds": time.perf_counter() - started,
        "peak": memory("VmHWM") - idle,
        "idle": idle,
        "sent": sent,
        "trained": trained,
    }


def row(name: str, found: dict[str, Any], dense: dict[str, Any]) -> str:
    """One line of the Markdown table."""
    if "refused" in found:
        return f"| `{name}` | does not apply: {found['refused']} | | | | |"
    return (
        f"| `{name}` | {found['seconds']:.1f} | {found['peak']:,.0f} | {dense['peak'] / found['peak']:.1f}x "
        f"| {found['sent']:,} | {dense['sent'] / found['sent']:.1f}x |"
    )


def in_a_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """``measure`` in a fresh process; a refusal and its reason are a result too."""
    arguments = ["--only", name, "--batch", options.batch, "--length", options.length, "--rank", options.rank]
    arguments += ["--data-dir", options.data_dir] if options.data_dir else []
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"process ended with status {done.returncode}"])[-1]
        return {"refused": said}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure every method in its own process, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--methods", nargs="+", default=strategies.names())
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options)))
        return
    dense = in_a_process(DENSE, options)
    if "refused" in dense:
        sys.exit(f"the dense step failed: {dense['refused']}")
    lines = [
        "| method | seconds | peak above idle, MB | smaller than dense | values sent | fewer than dense |",
        "|---|---|---|---|---|---|",
    ]
    for name in (DENSE, *(method for method in options.methods if method != DENSE)):
        lines.append(row(name, dense if name == DENSE else in_a_process(name, options), dense))
        print(lines[-1], flush=True)
    note = (
        f"RoBERTa-base's architecture, random weights, {dense['trained']:,} trained parameters (embeddings frozen), "
        f"float32; batch {options.batch}, length {options.length}, rank {options.rank}; each process held "
        f"{dense['idle']:,.0f} MB before the step. {platform.machine()}, one thread; torch {torch.__version__}, Python "
        f"{platform.python_version()}. Each method takes one step in its own process."
    )
    text = "\n".join([*lines, "", note, ""])
    if options.out is not None:
        options.out.write_text("# One private step on RoBERTa-base's architecture\n\n" + text)
    print("\n" + text)


if __name__ == "__main__":
    main()
