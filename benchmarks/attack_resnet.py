"""Single images from the gradient of a ResNet: what is rebuilt, and what sparsity, rank and noise take away.

    python -m benchmarks.attack_resnet --out docs/results/attack_resnet.md
    python -m benchmarks.attack_resnet --model resnet-34 --side 32 --evaluations 24000 --device cuda \\
        --cells dense,another

FEDLSG_DATA names the mirror with cifar10/plain_text. The attacked images and the prior (the mean image of each class)
are different rows of the test split; nothing is trained on it. The adversary knows the label.
``--norm none`` replaces each norm by the identity, which is what BatchNorm in eval mode is in an untrained network, as
in the published attacks; ``group`` keeps the GroupNorm of this project's models.
"""

import argparse
import math
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import strategies
from benchmarks.cifar16 import halved, normalise
from fedlsg.attacks.inversion.matching import ATTACKS, Matching, Pixels, match
from fedlsg.attacks.inversion.prior import Prior, blind_guess, total_variation
from fedlsg.attacks.metrics import mean_interval, psnr
from fedlsg.attacks.observation import Knowledge, Observation
from fedlsg.attacks.search import adam
from fedlsg.method import LocalTraining, Schedule, client_step
from fedlsg.randomness import public_generator, reproducible_stream
from fedlsg.state import PublicState
from simulations.models.resnet import cifar_resnet, resnet34

MODELS = {
    "resnet-8": partial(cifar_resnet, 8),
    "resnet-20": partial(cifar_resnet, 20),
    "resnet-34": partial(resnet34, stem="cifar"),
}
BATCH, RATE = 100, 0.02
"""Examples and largest learning rate of a step of ``--trained``."""
PUBLIC = 1000
"""Rows of the test split before this one are attacked, those from it on make the prior."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the table: a method with its settings, its noise, and how it is attacked."""

    method: str = "dpsgd"
    settings: Mapping[str, Any]
    sigma: float = 0.0
    attack: str = "smooth-relu"
    another: bool = False


def rs(sparsity: float) -> Cell:
    """Random sparsification with a fixed mask."""
    return Cell(method="rs", settings={"sparsity": sparsity, "cooling": False})


CELLS = {
    "dense": Cell(settings={}),
    "dense (attack before)": Cell(settings={}, attack="inverting-gradients"),
    "another": Cell(settings={}, another=True),
    "rs p=.5": rs(0.5),
    "rs p=.9": rs(0.9),
    "rs p=.99": rs(0.99),
    "rgp r=8": Cell(method="rgp", settings={"rank": 8}),
    "rgp r=2": Cell(method="rgp", settings={"rank": 2}),
    "lsg r=8 p=.5": Cell(method="lsg", settings={"rank": 8, "sparsity": 0.5}),
    "sigma=.001": Cell(settings={}, sigma=1e-3),
    "sigma=.01": Cell(settings={}, sigma=1e-2),
}


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def without_norms(model: nn.Module) -> nn.Module:
    """The same with the identity for each GroupNorm, in place."""
    for name, child in model.named_children():
        if isinstance(child, nn.GroupNorm):
            setattr(model, name, nn.Identity())
        else:
            without_norms(child)
    return model


def observe(model: nn.Module, x: Tensor, y: Tensor, cell: Cell, image: int, seed: int) -> Observation:
    """The payload of a client with one example, clipped to 1."""
    noise: dict[str, Any] = {"mechanism": "dp", "noise_multiplier": cell.sigma} if cell.sigma else {}
    how = {"mechanism": "clip-only", "clip_norm": 1.0, **noise, **cell.settings}
    method = strategies.recipe(cell.method, **how)
    public = PublicState.start(model, method, Schedule(rounds=2), seed=seed, classifier="classifier")
    frame, local = public.frame(2, updates=1), LocalTraining()
    values = client_step(
        model, lambda rows: (x[rows], y[rows]), loss_fn, frame=frame, mechanism=method.mechanism, local=local,
        num_examples=1, sampler=reproducible_stream(seed, "sampler", image), charge=lambda: None,
        noise=reproducible_stream(seed, "noise", image, cell.method, str(cell.sigma)),
    )  # fmt: skip
    return Observation(
        model=model, loss_fn=loss_fn, frame=frame, values=values, mechanism=method.mechanism, local=local,
        noise_std=method.mechanism.noise_std,
    )  # fmt: skip


def without_payload(seen: Observation, prior: Prior, known: Knowledge, attack: Matching, image: int) -> Tensor:
    """What total variation alone makes of the start that the attack has, in as many evaluations."""
    unknowns = Pixels(seen, known, prior, 1)
    found, _ = adam(
        lambda point: total_variation(unknowns.split(point)[0]).sum(),
        unknowns.start(1, public_generator(0, "attack", image)),
        unknowns.box,
        evaluations=attack.evaluations,
        step_size=attack.step_size * unknowns.spans,
        signed=True,
        go_on=lambda done, lowest: True,
    )
    return unknowns.split(found)[0]


def measure(cell: Cell, scene: dict[str, Any], options: argparse.Namespace) -> tuple[dict[str, Tensor], list[Tensor]]:
    """PSNR of each image in dB: attacked, blind, and by the prior of the attack without the payload; the guesses."""
    decibels: dict[str, list[float]] = {"attack": [], "blind": [], "smooth": [], "objective": [], "kept": []}
    guesses = []
    prior = scene["prior"]
    attack = replace(ATTACKS[cell.attack], evaluations=options.evaluations, restarts=options.restarts)
    if cell.attack == "inverting-gradients":
        attack = replace(attack, total_variation=5e-2)
    for image, (x, y) in enumerate(zip(scene["inputs"].split(1), scene["labels"].split(1), strict=True)):
        sent = scene["others"][image : image + 1] if cell.another else x
        seen = observe(scene["model"], sent, y, cell, image, options.seed).to(options.device)
        known = Knowledge(labels=y, examples=1)
        guess = match(seen, known, prior, attack=attack, generator=public_generator(options.seed, "attack", image))
        smooth = without_payload(seen, prior, known, attack, image).cpu()
        for name, found in (("attack", guess.inputs), ("blind", blind_guess(prior, known).inputs), ("smooth", smooth)):
            decibels[name] += psnr(found, x, data_range=prior.span).tolist()
        decibels["objective"].append(math.nan if guess.objective is None else guess.objective)
        decibels["kept"].append(seen.frame.kept)
        guesses.append(guess.inputs)
        print("   ", *(f"{name} {values[-1]:.3f}" for name, values in decibels.items()), flush=True)
    return {name: torch.tensor(values) for name, values in decibels.items()}, guesses


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, seed: int) -> str:
    """Train on public rows by momentum SGD with a falling rate, in place; returns what to say of it."""
    steps = epochs * (len(x) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=draw)[: steps // epochs * BATCH].split(BATCH):
            optimizer.zero_grad()
            loss_fn(model(x[rows]), y[rows]).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).double().mean()
    return f"trained for {epochs} epochs on {len(x):,} public rows, {100 * right:.0f} % of them right"


def make_scene(options: argparse.Namespace) -> dict[str, Any]:
    """The public model and prior, and the private images."""
    pixels, labels = halved("test", by=32 // options.side)
    images = normalise(pixels)
    torch.manual_seed(options.seed)
    model = MODELS[options.model](channels=3, num_classes=10)
    if options.norm == "none":
        model = without_norms(model)
    state = "before training"
    if options.trained:
        state = train(model, images[PUBLIC:], labels[PUBLIC:], options.trained, options.seed)
    mean = torch.stack([images[PUBLIC:][labels[PUBLIC:] == label].double().mean(0) for label in range(10)])
    first, count = options.first, options.images
    return {
        "model": model,
        "state": state,
        "prior": Prior(shape=tuple(images.shape[1:]), low=-2.0, high=2.0, mean=mean),
        "inputs": images[first : first + count],
        "labels": labels[first : first + count],
        "others": images[first + count : first + 2 * count],
    }


def line(name: str, found: dict[str, Tensor]) -> str:
    """One line of the table."""
    gain = mean_interval(found["attack"] - found["blind"])
    each = ", ".join(f"{value:.1f}" for value in found["attack"].tolist())
    blind, smooth, objective = (found[what].mean() for what in ("blind", "smooth", "objective"))
    return f"| {name} | {found['kept'][0]:,.0f} | {each} | {blind:.1f} | {smooth:.1f} | {gain} | {objective:.4f} |"


def picture(rows: list[list[Tensor]], path: Path, *, times: int = 4) -> None:
    """A PNG with one row of images for each list."""
    pixels = torch.cat([torch.cat([(image[0] * 0.25 + 0.5) for image in row], 2) for row in rows], 1)
    array = (pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(np.kron(array, np.ones((times, times, 1), np.uint8))).save(path, optimize=True)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", choices=MODELS, default="resnet-8")
    parser.add_argument("--norm", choices=("none", "group"), default="none")
    parser.add_argument("--trained", type=int, default=0, metavar="EPOCHS")
    parser.add_argument("--side", type=int, choices=(16, 32), default=16)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first attacked row of the test split")
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--cells", default=",".join(CELLS), help="separated by commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Run, print, write."""
    options = parsed()
    torch.set_num_threads(1)
    scene, began = make_scene(options), time.monotonic()
    chosen = [name for name in CELLS if name in options.cells.split(",")]
    lines = [
        "| payload | numbers | each image, dB | blind, dB | no payload, dB | gain over blind, dB | objective |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [list(scene["inputs"].split(1))]
    for name in chosen:
        found, guesses = measure(CELLS[name], scene, options)
        lines.append(line(name, found))
        rows.append(guesses)
        print(lines[-1], flush=True)
    seconds = (time.monotonic() - began) / max(1, len(chosen) * options.images * options.evaluations * options.restarts)
    note = (
        f"{options.model}, norm {options.norm}, {options.side} x {options.side}, {scene['state']}, "
        f"{options.evaluations} evaluations x "
        f"{options.restarts} restarts an image, {1000 * seconds:.0f} ms each; seed {options.seed}, "
        f"{platform.machine()}, {options.device}, one thread, torch {torch.__version__}. "
        f"Command: `python -m benchmarks.attack_resnet {' '.join(sys.argv[1:])}`"
    )
    text = "\n".join([*lines, "", note, ""])
    print("\n" + text)
    if options.out is not None:
        options.out.write_text("# Single images from ResNet gradients\n\n" + text)
        picture(rows, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
