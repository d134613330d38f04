"""Matching attacks on digits: PSNR from one example's payload, with and without noise, next to the blind baseline.

    python benchmarks/attack_digits.py --out docs/results/attack_digits.md [--model mlp] [--images 50]
    python benchmarks/attack_digits.py --methods lsg lsg-probe probe --out docs/results/attack_probe.md

The attacked images come from the test split; the model was trained by 20 plain SGD steps on the training split. The
prior is computed from the training split too (a mean image of each class and the covariance around it). Every
adversary knows the label and the batch size of 1. Noise derives from the seed, so the numbers are reproducible.
"""

import argparse
import platform
import statistics
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import strategies
from fedlsg.attacks.inversion.matching import ATTACKS, Matching, match
from fedlsg.attacks.inversion.prior import Prior, blind_guess, prior_from
from fedlsg.attacks.metrics import mean_interval, psnr
from fedlsg.attacks.observation import Knowledge, Observation
from fedlsg.carriers.probe import ProbeSource
from fedlsg.gradients import trainable
from fedlsg.method import LocalTraining, Schedule, client_step
from fedlsg.randomness import public_generator, reproducible_stream
from fedlsg.state import PublicState
from simulations.models.small import digits_conv, digits_mlp
from simulations.workloads import load
from simulations.workloads.public_data import probe_source

METHODS: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "rgp": {"rank": 8},
    "lsg": {"rank": 8, "sparsity": 0.5},
    "rs": {"sparsity": 0.5, "cooling": False},
    "lsg-probe": {"rank": 8, "sparsity": 0.5},
    "probe": {"rank": 16, "out_rank": 16},
}
USUAL = ("dpsgd", "rgp", "lsg", "rs")
MODELS = {"mlp": digits_mlp, "conv": digits_conv}
LOW, HIGH = -0.6, 1.4
SMOOTH = Matching(distance="cosine", evaluations=60, restarts=1, total_variation=1e-2)


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def train(model: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator, steps: int = 20) -> None:
    """Plain SGD, so that W_t is not W_0."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(steps):
        rows = torch.randint(len(labels), (64,), generator=generator)
        optimizer.zero_grad()
        loss_fn(model(inputs[rows]), labels[rows]).mean().backward()
        optimizer.step()


def observe(
    name: str, model: nn.Module, initial: dict[str, Tensor], x: Tensor, y: Tensor, sigma: float, image: int, seed: int
) -> Observation:
    """The payload of a client with a single example: clipped to C = 0.5, with noise if sigma > 0."""
    noise: dict[str, Any] = {"mechanism": "dp", "noise_multiplier": sigma} if sigma else {"mechanism": "clip-only"}
    method = strategies.recipe(name, clip_norm=0.5, **noise, **METHODS[name])
    probed = method.carrier.source is not None
    source = leaves() if probed else None
    public = PublicState.start(model, method, Schedule(rounds=2), seed=seed, classifier="classifier", source=source)
    public = replace(public, initial=initial)
    frame = public.frame(2, updates=1, basis=public.probe(1, updates=1) if probed else None)
    values = client_step(
        model, lambda rows: (x[rows], y[rows]), loss_fn, frame=frame, mechanism=method.mechanism, local=LocalTraining(),
        num_examples=1, sampler=reproducible_stream(seed, "sampler", image), charge=lambda: None,
        noise=reproducible_stream(seed, "noise", image, name, str(sigma)),
    )  # fmt: skip
    return Observation(
        model=model, loss_fn=loss_fn, frame=frame, values=values, mechanism=method.mechanism, local=LocalTraining(),
        noise_std=method.mechanism.noise_std,
    )  # fmt: skip


@cache
def leaves() -> ProbeSource:
    """Dead leaves, in the numbers of the model."""
    source = probe_source(load("digits"), "leaves")
    draw = source.draw
    assert draw is not None
    return replace(source, draw=lambda count, generator: draw(count, generator).double())


def measure(name: str, sigma: float, attacks: dict[str, Matching], scene: dict[str, Any]) -> dict[str, Tensor]:
    """PSNR of every image under every attack, and blind."""
    found: dict[str, list[float]] = {"blind": [], **{attack: [] for attack in attacks}}
    prior: Prior = scene["prior"]
    for image, (x, y) in enumerate(zip(scene["inputs"].split(1), scene["labels"].split(1), strict=True)):
        seen = observe(name, scene["model"], scene["initial"], x, y, sigma, image, scene["seed"])
        knowledge = Knowledge(labels=y, examples=1)
        guesses = {"blind": blind_guess(prior, knowledge)}
        for attack, settings in attacks.items():
            generator = public_generator(scene["seed"], "attack", image)
            guesses[attack] = match(seen, knowledge, prior, attack=settings, generator=generator)
        for attack, guess in guesses.items():
            found[attack] += psnr(guess.inputs, x, data_range=prior.span).tolist()
    return {attack: torch.tensor(values) for attack, values in found.items()}


def noise_free(scene: dict[str, Any]) -> list[str]:
    """One line for each method: adaptive DLG, and naive attacks with the same budget."""
    lines = [
        "| method | blind | adaptive DLG: median, least | above 40 dB | naive DLG: median | naive cosine: median |",
        "|---|---|---|---|---|---|",
    ]
    dlg = replace(ATTACKS["dlg"], restarts=2)
    attacks = {"adaptive": dlg, "naive": replace(dlg, compare="naive")}
    attacks["naive cosine"] = replace(dlg, compare="naive", distance="cosine")
    for name in scene["methods"]:
        found = measure(name, 0.0, attacks, scene)
        adaptive = found["adaptive"].tolist()
        median = {attack: statistics.median(values.tolist()) for attack, values in found.items()}
        lines.append(
            f"| `{name}` | {median['blind']:.1f} | {median['adaptive']:.0f}, {min(adaptive):.0f} "
            f"| {sum(value > 40 for value in adaptive)} of {len(adaptive)} | {median['naive']:.1f} "
            f"| {median['naive cosine']:.1f} |"
        )
        print(lines[-1], flush=True)
    return lines


def noisy(scene: dict[str, Any], sigmas: list[float]) -> list[str]:
    """One line for each method and sigma: gains over the blind baseline, paired by image, with their intervals."""
    lines = [
        "| sigma | method | blind | MAP: gain | adaptive cosine: gain | naive cosine: gain | adaptive minus naive |",
        "|---|---|---|---|---|---|---|",
    ]
    attacks = {"map": ATTACKS["map"], "adaptive": SMOOTH, "naive": replace(SMOOTH, compare="naive")}
    for sigma in sigmas:
        for name in scene["methods"]:
            found = measure(name, sigma, attacks, scene)
            gains = [mean_interval(found[attack] - found["blind"]) for attack in attacks]
            margin = mean_interval(found["adaptive"] - found["naive"])
            lines.append(
                f"| {sigma:g} | `{name}` | {found['blind'].mean():.1f} | "
                + " | ".join(str(gain) for gain in gains)
                + f" | {margin} |"
            )
            print(lines[-1], flush=True)
    return lines


def make_scene(model: str, images: int, seed: int) -> dict[str, Any]:
    """The public model and prior, and the private images."""
    workload = load("digits")
    public, labels = workload.train.batch(torch.arange(len(workload.train)))
    private, private_labels = workload.test.batch(torch.arange(images))
    torch.manual_seed(seed)
    net = MODELS[model]().double()
    initial = {name: p.detach().clone() for name, p in trainable(net).items()}
    train(net, public.double(), labels, public_generator(seed, "train"))
    prior = prior_from(public, labels, low=LOW, high=HIGH)
    scene = {"model": net, "initial": initial, "prior": prior, "seed": seed}
    return {**scene, "inputs": private.double(), "labels": private_labels}


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=USUAL)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--noise-free-images", type=int, default=5)
    parser.add_argument("--sigmas", type=float, nargs="+", default=[1.0, 0.1, 0.01])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    scene = make_scene(options.model, options.images, options.seed) | {"methods": options.methods}
    few = {key: scene[key][: options.noise_free_images] for key in ("inputs", "labels")}
    first = noise_free({**scene, **few})
    second = noisy(scene, options.sigmas)
    note = (
        f"Seed {options.seed}, model {options.model}, float64, {platform.machine()}, one thread, "
        f"{(time.monotonic() - start) / 60:.0f} minutes; torch {torch.__version__}, Python "
        f"{platform.python_version()}. "
        f"Command: `python benchmarks/attack_digits.py {' '.join(sys.argv[1:])}`"
    )
    text = "\n".join(["No noise, PSNR in dB:", "", *first, "", "With noise, dB:", "", *second, "", note, ""])
    if options.out is not None:
        options.out.write_text("# Matching attacks on digits, batch 1\n\n" + text)
    print("\n" + text)


if __name__ == "__main__":
    main()
