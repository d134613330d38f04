"""Members of a group that are drawn to their consensus against restarts that are not, at as many evaluations.

    python -m benchmarks.attack_group --weights 1,10                            CIFAR-10 at 16 x 16, ResNet-8
    python -m benchmarks.attack_group --scene digits --attack inverting-gradients --images 12 --batch 4 \\
        --evaluations 200 --weights 0.1,1                                       digits, the CNN digits_conv

FEDLSG_DATA names the mirror with cifar10/plain_text. Dense payloads without noise, networks before training, labels
granted, as in benchmarks/attack_resnet.py. All lines have the same starting points, but for ``one start``: that is a
single long search from the first one.
"""

import argparse
import platform
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.attack_resnet import Cell, observe
from benchmarks.attack_resnet import make_scene as cifar_scene
from fedlsg.attacks.inversion.matching import ATTACKS, Matching, match
from fedlsg.attacks.inversion.metrics import best_matching, mean_interval, psnr, squared_errors
from fedlsg.attacks.inversion.prior import Prior, blind_guess, prior_from
from fedlsg.attacks.observation import Knowledge, Observation
from fedlsg.randomness import public_generator
from simulations.models.small import digits_conv
from simulations.workloads import load

DENSE = Cell(settings={})
FEW = 10
"""More images than these are given as their mean."""


def attacks(options: Namespace) -> dict[str, Matching]:
    """The lines of the table, each with the same number of evaluations in all."""
    many = replace(ATTACKS[options.attack], evaluations=options.evaluations, restarts=options.members)
    weights = [float(weight) for weight in options.weights.split(",")]
    return {
        "one start": replace(many, evaluations=options.evaluations * options.members, restarts=1),
        f"{options.members} restarts": many,
        **{f"group of {options.members}, weight {weight:g}": replace(many, group=weight) for weight in weights},
    }


def make_scene(options: Namespace) -> dict[str, Any]:
    """The public model and prior, and the private images."""
    if options.scene == "cifar":
        return cifar_scene(Namespace(**vars(options), model="resnet-8", norm="none", side=16, trained=0))
    test = load("digits").test
    images, labels = test.batch(torch.arange(len(test)))
    assert isinstance(images, Tensor)
    public, private = slice(len(test) // 2), slice(len(test) // 2 + options.first, None)
    torch.manual_seed(options.seed)
    return {
        "model": digits_conv(),
        "prior": prior_from(images[public], labels[public], low=-0.6, high=1.4),
        "inputs": images[private][: options.images],
        "labels": labels[private][: options.images],
    }


def updates(scene: Mapping[str, Any], options: Namespace) -> list[tuple[Observation, Tensor, Tensor]]:
    """Each update with its images and labels. Without noise the update of a batch is the sum over its examples."""
    made = []
    pairs = zip(scene["inputs"].split(options.batch), scene["labels"].split(options.batch), strict=True)
    for number, (x, y) in enumerate(pairs):
        each = [
            observe(scene["model"], x[one : one + 1], y[one : one + 1], DENSE, number, options.seed)
            for one in range(len(y))
        ]
        total = torch.stack([seen.values for seen in each]).sum(0)
        made.append((replace(each[0], values=total), x, y))
    return made


def decibels(guess: Tensor, truth: Tensor, prior: Prior) -> list[float]:
    """PSNR of each true image by the guess that is paired with it: a batch has no order."""
    guesses, truths = best_matching(squared_errors(guess, truth))
    return psnr(guess[guesses], truth[truths], data_range=prior.span).tolist()


def measure(attack: Matching, scene: Mapping[str, Any], options: Namespace) -> dict[str, Tensor]:
    """PSNR of each image by the attack and by the blind guess, in dB; the objective of each update."""
    found: dict[str, list[float]] = {"attack": [], "blind": [], "objective": []}
    prior = scene["prior"]
    for number, (seen, x, y) in enumerate(updates(scene, options)):
        known = Knowledge(labels=y.sort().values, examples=len(y))
        generator = public_generator(options.seed, "attack", number)
        guess = match(seen, known, prior, attack=attack, generator=generator)
        assert guess.objective is not None
        found["attack"] += decibels(guess.inputs, x, prior)
        found["blind"] += decibels(blind_guess(prior, known).inputs, x, prior)
        found["objective"].append(guess.objective)
    return {name: torch.tensor(values) for name, values in found.items()}


def line(name: str, found: Mapping[str, Tensor], plain: Mapping[str, Tensor]) -> str:
    """One line of the table; the difference is from plain restarts, paired by image."""
    decibel = found["attack"].tolist()
    each = (
        ", ".join(f"{value:.1f}" for value in decibel) if len(decibel) < FEW else f"mean {found['attack'].mean():.1f}"
    )
    gain, difference = (mean_interval(found["attack"] - other) for other in (found["blind"], plain["attack"]))
    return f"| {name} | {each} | {gain} | {difference} | {found['objective'].mean():.4f} |"


def parsed() -> Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", choices=("cifar", "digits"), default="cifar")
    parser.add_argument("--attack", choices=("smooth-relu", "inverting-gradients"), default="smooth-relu")
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="examples in an update")
    parser.add_argument("--first", type=int, default=10, help="the first attacked row of the test split")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--evaluations", type=int, default=250, help="of each member")
    parser.add_argument("--weights", default="1", help="of the disagreement, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Run and print."""
    options = parsed()
    torch.set_num_threads(1)
    scene = make_scene(options)
    began = time.monotonic()
    print(
        "| search | each image, dB | gain over blind, dB | difference from restarts, dB | objective |\n"
        "|---|---|---|---|---|"
    )
    tried = attacks(options)
    found: dict[str, dict[str, Tensor]] = {}
    for name in sorted(tried, key=lambda name: not name.endswith("restarts")):
        found[name] = measure(tried[name], scene, options)
        print(line(name, found[name], found[f"{options.members} restarts"]), flush=True)
    print(
        f"\n{options.evaluations} evaluations x {options.members} an update, {time.monotonic() - began:.0f} s in all; "
        f"seed {options.seed}, {platform.machine()}, one thread, torch {torch.__version__}. "
        f"Command: `python -m benchmarks.attack_group {' '.join(sys.argv[1:])}`"
    )


if __name__ == "__main__":
    main()
