"""Attacks on the updates of an image workload, and what pages show of them.

Closed forms come before matching. ``images_score`` compares guesses with the truth.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlsg.attacks.inversion.linear import input_of_linear, labels_of, settle_scale
from fedlsg.attacks.inversion.matching import ATTACKS, SMALL_IMAGE_NUMBERS, match
from fedlsg.attacks.inversion.prior import Prior, blind_guess, count_equations
from fedlsg.attacks.inversion.relu_batch import relu_batch
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation, ThreatModel
from fedlsg.attacks.recognition import LEAKS
from fedlsg.attacks.search import Progress
from fedlsg.simulations.attacks.findings import NAIVE, NO_ATTACK, VERDICTS, shown_name
from fedlsg.simulations.attacks.images_score import (
    PublicImages,
    Scored,
    Summary,
    blind_in_order,
    classifier_leak,
    first_image,
    public_images,
    score_images,
)
from fedlsg.simulations.attacks.observations import Record
from fedlsg.simulations.attacks.target import Attack, Kind, Options, Reading, Results, Target
from fedlsg.simulations.report.pages.page import Badge, Gallery, Shot, Versions

DEEP = 7
"""With so many convolutions or more, a search with the exact second derivative of ReLU does not
converge; ``small_cnn`` has 4.
"""


def _run_first_layer(
    observation: Observation, known: Knowledge, prior: Prior, generator: torch.Generator, *_: object
) -> Guess:
    """The exact input of one example; its scale by the label, if a ratio leaves the scale open."""
    observation = observation.in_float64()
    guess = input_of_linear(observation, prior)
    if not guess.scale_open:
        return guess
    labels = with_labels(observation, prior, known).labels
    try:
        return guess if labels is None else settle_scale(observation, guess, int(labels[0]))
    except DoesNotApply:
        return guess


def _run_relu_batch(
    observation: Observation, known: Knowledge, prior: Prior, generator: torch.Generator, *_: object
) -> Guess:
    return relu_batch(observation.in_float64(), prior, known, generator)


def _matching(name: str, *, naive: bool) -> Attack:
    def run(
        observation: Observation,
        known: Knowledge,
        prior: Prior,
        generator: torch.Generator,
        seconds: float,
        progress: Progress,
        device: str = "cpu",
    ) -> Guess:
        attack = ATTACKS[name].for_images(prior.size)
        attack = replace(attack, compare="naive" if naive else "adaptive", seconds=seconds)
        known = with_labels(observation, prior, known)
        return match(
            observation.to(device),
            known,
            prior,
            attack=attack,
            generator=generator,
            progress=progress,
        )

    return Attack(name=name + NAIVE if naive else name, run=run)


def with_labels(observation: Observation, prior: Prior, known: Knowledge) -> Knowledge:
    """Knowledge with labels: granted ones, or those read from the classifier's gradient (iDLG)."""
    if known.labels is not None or known.examples is None:
        return known
    try:
        return Knowledge(labels=labels_of(observation, prior, known), examples=known.examples)
    except DoesNotApply:
        return known


IMAGE_ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        "first-layer": Attack(name="first-layer", run=_run_first_layer),
        "relu-batch": Attack(name="relu-batch", run=_run_relu_batch),
        **{name: _matching(name, naive=False) for name in ATTACKS},
        **{
            name + NAIVE: _matching(name, naive=True)
            for name, attack in ATTACKS.items()
            if attack.has_naive_form
        },
    }
)


def strongest(observation: Observation, known: Knowledge, *, naive: bool) -> list[Attack]:
    """The attacks that may work on an observation: closed forms without noise, and matching.

    Without noise a deep convolutional network is attacked through a smooth derivative of its ReLUs.
    ``naive`` adds the naive forms to the adaptive ones, to show the difference.
    """
    names = []
    if observation.noise_std == 0 and _starts_linear(observation):
        names.append("first-layer" if known.examples == 1 else "relu-batch")
    deep = sum(isinstance(module, nn.Conv2d) for module in observation.model.modules()) >= DEEP
    names.append("smooth-relu" if deep and observation.noise_std == 0 else "inverting-gradients")
    names.append("map" if observation.noise_std else "dlg")
    names += [name + NAIVE for name in names if naive and name + NAIVE in IMAGE_ATTACKS]
    return [IMAGE_ATTACKS[name] for name in names]


def _starts_linear(observation: Observation) -> bool:
    """Whether the first layer is linear in the inputs themselves."""
    modules = observation.model.modules()
    layers = (
        module for module in modules if next(module.parameters(recurse=False), None) is not None
    )
    return not observation.encoded and isinstance(next(layers, None), nn.Linear)


GALLERY_CAPTION = (
    "Each row is one image. The number below it is its PSNR, red where the image is recognised: "
    "nearer to its original than to any public image. Pink pixels are unknown to the attack. "
    "Recovered images and blind guesses are paired with the originals by least squared error."
)
IMAGES_SHOWN = 12
"""Images on a page at most."""
IMAGE_SIDE = 180
"""Width of an image on a page in CSS pixels."""
UNKNOWN_COLOUR = (1.0, 0.86, 0.86)
"""Red, green and blue of unknown pixels, 0 to 1."""


class Images(Kind):
    """Attacks on the images of one run.

    workload: the data of the run.
    small: whether all attempts share ``ALL_SECONDS``.
    """

    outcome, original, known = Summary, "picture", IMAGE_ATTACKS

    def __init__(self, record: Record) -> None:
        self.workload = record.workload
        self.small = first_image(self.workload).numel() <= SMALL_IMAGE_NUMBERS

    @cached_property  # public images do not change
    def public(self) -> PublicImages:
        """Images that no client has; they are read when an attack needs them."""
        return public_images(self.workload)

    @property
    def prior(self) -> Prior:
        """The prior of the public images."""
        return self.public.prior

    def guessed(self, threat: ThreatModel) -> str:
        number = "how many pictures an update has"
        if threat.labels == "known" and self.public.labels is not None:
            mean = "the mean of the public test pictures of its class"
            return f"{mean}. It is granted the class, and {number}"
        return f"the mean of all public test pictures. It is granted {number}"

    def attacks(self, seen: Observation, known: Knowledge, options: Options) -> Sequence[Attack]:
        if options.attacks is None:
            return strongest(seen, known, naive=options.naive)
        return self.named(options.attacks)

    def task(
        self, target: Target, known: Knowledge, examples: int
    ) -> tuple[Prior, Tensor, Callable[[str, Guess, float], Scored]]:
        truth, prior = target.truth.inputs, self.prior
        assert isinstance(truth, Tensor)  # ``first_image`` refuses other workloads
        blind = blind_in_order(
            blind_guess(prior, known, examples=len(truth)).inputs, truth.double()
        )
        judge = self.public.judge(truth, target.truth.labels, examples)
        return (
            prior,
            blind,
            lambda name, guess, took: score_images(name, guess, truth, blind, prior, took, judge),
        )

    def describe(self, found: Results) -> tuple[dict[str, str], dict[str, Any]]:
        first, threat = found.targets[0], found.threat
        count = count_equations(first.seen, self.prior, threat, first.truth.grant(threat))
        leak = classifier_leak(found.targets, self.prior, threat)
        sizes = sorted({len(target.truth.rows) for target in found.targets})
        facts = {
            "attacked": f"{len(found.targets)} update{'' if len(found.targets) == 1 else 's'} of "
            f"{' or '.join(f'{size:,}' for size in sizes)} example{'' if sizes == [1] else 's'}",
            "search": f"at most {found.seconds:.3g} s for each attack on each update",
            **({} if leak is None else leak.facts),
            "equations": f"{count.received:,} numbers received, {count.equations:,} of them "
            f"independent, for {count.unknowns:,} unknowns in a batch of "
            f"{count.examples:,}: "
            + ("at least as many as" if count.enough else "fewer than")
            + " an exact solution needs without noise",
        }
        return facts, {
            "classifier": None if leak is None else asdict(leak),
            "values_received": count.received,
            "unknowns": count.unknowns,
        }

    def numbers(self, target: Target, blind: Tensor, scores: Sequence[Scored]) -> dict[str, Any]:
        return {"attacks": [score.numbers("images") for score in scores]}

    def compared(
        self, found: Results, sides: Mapping[str, Sequence[Sequence[Reading]]]
    ) -> Versions:
        """A card for each of the first images: original, blind guess, what each side recovered."""
        cards, count = [], found.record.base.settings.clients
        for target, blind, *readings in zip(
            found.targets, found.blind, *sides.values(), strict=True
        ):
            assert isinstance(target.truth.inputs, Tensor)
            for index, truth in enumerate(target.truth.inputs):
                whose = f"of client {target.truth.clients[index]} of the {count} recorded"
                original = _shot(truth, self.prior, whose)
                guess = _shot(blind[index], self.prior, "no update is used")
                versions = (_version(side[index], index, self.prior) for side in readings)
                cards.append((original, guess, *versions))
        names = ("original", "blind guess", *sides)
        return Versions(columns=names, cards=tuple(cards[:IMAGES_SHOWN]), side=IMAGE_SIDE)

    def shown(self, found: Results, order: Sequence[str]) -> Gallery:
        """The first images of a run, each with its PSNR: original, strongest attack, blind guess,
        the other attacks.

        The strongest attack is second, because a phone shows two without scrolling.
        """
        rows, prior = [], self.prior
        for target, blind, scores in zip(found.targets, found.blind, found.results, strict=True):
            by_attack = {score.attack: score for score in scores}
            assert isinstance(target.truth.inputs, Tensor)
            for index, truth in enumerate(target.truth.inputs):
                # every attack has the same blind guess
                words = f"{scores[0].blind[index]:.1f} dB" if scores else ""
                original = _shot(truth, prior, f"batch of {len(target.truth.rows)}")
                recovered = [_recovered(by_attack.get(name), index, prior) for name in order]
                rows.append(
                    (original, *recovered[:1], _shot(blind[index], prior, words), *recovered[1:])
                )
        names = (
            "original",
            *map(shown_name, order[:1]),
            "blind guess",
            *map(shown_name, order[1:]),
        )
        return Gallery(
            columns=names, rows=tuple(rows[:IMAGES_SHOWN]), caption=GALLERY_CAPTION, side=IMAGE_SIDE
        )


def pixels_of(image: Tensor, prior: Prior) -> np.ndarray:
    """(h, w, 3) in 0..1 from (C, h, w) in the units of the model.

    Unknown pixels have ``UNKNOWN_COLOUR``.
    """
    low, high = prior.bounds
    scaled = ((image.double().cpu() - low) / (high - low)).clamp(0, 1)
    pixels = scaled.expand(3, *scaled.shape[1:]) if len(scaled) == 1 else scaled
    pixels = torch.where(
        pixels.isnan(), torch.tensor(UNKNOWN_COLOUR, dtype=pixels.dtype).view(3, 1, 1), pixels
    )
    return pixels.permute(1, 2, 0).numpy()


def _recovered(result: Scored | None, index: int, prior: Prior) -> Shot:
    """What an attack recovered: red if it is recognised; empty if the attack did not apply."""
    if result is None:
        return Shot(uri="", words="does not apply")
    recognised = result.recognitions[index].verdict in LEAKS
    words = f"{result.psnr[index]:.1f} dB" + (", did not converge" if result.stuck else "")
    return _shot(result.images[index], prior, words, style="bad" if recognised else "")


def _version(reading: Reading, index: int, prior: Prior) -> Shot:
    """What a side recovered of an image, with the verdict on it."""
    if reading.score is None:
        return Shot(uri="", words=NO_ATTACK)
    words, style = VERDICTS[reading.verdict]
    return _shot(reading.score.images[index], prior, words.format("picture"), style=style)


def _shot(image: Tensor, prior: Prior, words: str, style: Badge = "") -> Shot:
    """An image as PNG, with its own pixels: a page shows it larger."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray((255 * pixels_of(image, prior)).round().astype(np.uint8)).save(
        file, format="png", optimize=True
    )
    return Shot(
        uri="data:image/png;base64," + base64.b64encode(file.getvalue()).decode(),
        words=words,
        style=style,
    )
