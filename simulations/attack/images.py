"""Attack the recorded updates of an image workload, and show what was found.

Closed forms first, then matching, of those that fit; ``images_score`` compares with the truth.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlsg.attacks.inversion.linear import input_of_linear, labels_of, settle_scale
from fedlsg.attacks.inversion.matching import ATTACKS, match
from fedlsg.attacks.inversion.prior import Count, Prior, blind_guess, count
from fedlsg.attacks.inversion.relu_batch import relu_batch
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation, ThreatModel
from fedlsg.attacks.search import Progress
from fedlsg.setting.choices import REMOVED, choose
from simulations.attack.findings import CONVERGED, FORMS, NAIVE, Findings, Kind, findings_of, shown_name
from simulations.attack.images_score import (
    FINDING_DB,
    ClassifierLeak,
    Scored,
    classifier_leak,
    image_prior,
    in_order,
    scored,
    summarise,
)
from simulations.attack.observations import Record
from simulations.attack.target import Attack, Options, Results, Target, attack_each, pick
from simulations.report.page import Badge, Gallery, Shot
from simulations.report.progress import Tick
from simulations.report.table import Column

SMALL = 1024
"""Numbers of an image up to which the presets of ``ATTACKS`` (several short restarts) are meant."""
LARGE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "inverting-gradients": {"evaluations": 2400, "restarts": 1, "total_variation": 5e-2},
        "smooth-relu": {"evaluations": 2400, "restarts": 1},
        "dlg": {"evaluations": 1200, "restarts": 2},
        "map": {"evaluations": 600, "restarts": 1},
    }
)
"""Presets for larger images: one long search."""

DEEP = 7
"""Convolutions from which on the exact second derivative of ReLU leads a search nowhere; ``small_cnn`` has 4."""


def _linear(observation: Observation, known: Knowledge, prior: Prior, generator: torch.Generator, *_: object) -> Guess:
    observation = observation.in_float64()
    guess = input_of_linear(observation, prior)
    if not guess.scale_open:
        return guess
    labels = with_labels(observation, prior, known).labels
    try:
        return guess if labels is None else settle_scale(observation, guess, int(labels[0]))
    except DoesNotApply:
        return guess


def _relu(observation: Observation, known: Knowledge, prior: Prior, generator: torch.Generator, *_: object) -> Guess:
    return relu_batch(observation.in_float64(), prior, known, generator)


def _matching(name: str, *, naive: bool) -> Attack[Prior]:
    def run(
        observation: Observation,
        known: Knowledge,
        prior: Prior,
        generator: torch.Generator,
        seconds: float,
        progress: Progress,
        device: str = "cpu",
    ) -> Guess:
        attack = replace(ATTACKS[name], compare="naive" if naive else "adaptive", seconds=seconds)
        if prior.size > SMALL:
            attack = replace(attack, **LARGE.get(name, {}))
        known = with_labels(observation, prior, known)
        return match(observation.to(device), known, prior, attack=attack, generator=generator, progress=progress)

    return Attack(name=name + NAIVE if naive else name, run=run)


def with_labels(observation: Observation, prior: Prior, known: Knowledge) -> Knowledge:
    """Labels from the gradient of the classifier if they are not granted (iDLG, also for batches)."""
    if known.labels is not None or known.examples is None:
        return known
    try:
        return Knowledge(labels=labels_of(observation, prior, known), examples=known.examples)
    except DoesNotApply:
        return known


IMAGE_ATTACKS: Mapping[str, Attack[Prior]] = MappingProxyType(
    {
        "first-layer": Attack(name="first-layer", run=_linear),
        "relu-batch": Attack(name="relu-batch", run=_relu),
        **{name: _matching(name, naive=False) for name in ATTACKS},
        # A likelihood has no naive form: the noise is in the frame.
        **{name + NAIVE: _matching(name, naive=True) for name in ATTACKS if name != "map"},
    }
)


def attacks_named(names: str) -> list[Attack[Prior]]:
    """Attacks from a list with commas. Raises ValueError naming the known ones."""
    wanted = [name.strip() for name in names.split(",")]
    if any(name.removesuffix(NAIVE) == "group" for name in wanted):
        raise ValueError(f"attack 'group' {REMOVED}; choose 'smooth-relu', whose one long search rebuilds more")
    return [choose("attack", name, IMAGE_ATTACKS) for name in wanted]


def strongest(observation: Observation, known: Knowledge, *, naive: bool) -> list[Attack[Prior]]:
    """The attacks that may work on an observation: closed forms without noise, matching always.

    Without noise a deep convolutional network is attacked through a smooth derivative of its ReLUs.

    ``naive`` adds the naive forms to the adaptive ones, to show the difference.
    """
    found = []
    if observation.noise_std == 0 and _starts_linear(observation.model):
        found.append("first-layer" if known.examples == 1 else "relu-batch")
    deep = sum(isinstance(module, nn.Conv2d) for module in observation.model.modules()) >= DEEP
    found.append("smooth-relu" if deep and observation.noise_std == 0 else "inverting-gradients")
    found.append("map" if observation.noise_std else "dlg")
    found += [name + NAIVE for name in found if naive and name + NAIVE in IMAGE_ATTACKS]
    return [IMAGE_ATTACKS[name] for name in found]


def _starts_linear(model: nn.Module) -> bool:
    first: Sequence[nn.Module] = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    return bool(first) and isinstance(first[0], nn.Linear)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked(Results[Scored, Tensor]):
    """Results of one run of images.

    leak: what the classifier's gradient says without a search; None where its bias was not sent. seconds: of one attack
    on one update, at most.
    """

    prior: Prior
    count: Count
    leak: ClassifierLeak | None
    seconds: float


def attack_images(record: Record, threat: ThreatModel, options: Options, tick: Tick) -> Attacked:
    """Attack images of each batch size.

    Raises ValueError for an unknown attack, and where no recorded update has such a batch.
    """
    named = None if options.attacks is None else attacks_named(options.attacks)
    prior = image_prior(record.base.workload)
    targets = pick(record, threat, options)
    known = [target.truth.grant(threat) for target in targets]
    chosen = [
        strongest(target.seen, knowledge, naive=options.naive) if named is None else named
        for target, knowledge in zip(targets, known, strict=True)
    ]
    options = options.budget(sum(map(len, chosen)), small=prior.size <= SMALL)

    def prepared(target: Target, knowledge: Knowledge) -> tuple[Prior, Tensor, Callable[[str, Guess, float], Scored]]:
        truth = target.truth.inputs
        assert isinstance(truth, Tensor)
        blind = in_order(blind_guess(prior, knowledge, examples=len(truth)).inputs, truth.double())
        return prior, blind, lambda name, guess, took: scored(name, guess, truth, blind, prior, took)

    found = attack_each(record, targets, known, chosen, options, prepared, tick)
    return Attacked(
        **vars(found),
        prior=prior,
        count=count(targets[0].seen, prior, threat, known[0]),
        leak=classifier_leak(targets, prior, threat),
        seconds=options.seconds or 0.0,
    )


IMAGES = Kind(
    columns=(
        Column("images", lambda row: row.images),
        Column("PSNR", lambda row: row.psnr, ".1f"),
        Column("SSIM", lambda row: row.ssim, ".2f", optional=2),
        Column("blind", lambda row: row.blind, ".1f"),
        Column("gain", lambda row: row.mean_gain, "+z.1f"),
        Column("95 % interval", lambda row: row.gain, lambda gain: f"{gain.low:+z.1f} to {gain.high:+z.1f}"),
    ),
    note="PSNR, blind and gain in dB. blind: PSNR of a guess without the payload. gain: PSNR over it, paired by image. "
    "The 95 % interval is that of the mean gain over these images, as if they were independent; another training run "
    f"or other starting points are not in it. {FORMS}",
    granted={"prior": "the public range of pixels, and the mean and covariance of public test images by class"},
    limits="Each PSNR is shown next to that of a blind guess, because a grey image already has 10 to 12 dB.",
    unit="dB",
    scale=1.0,
    summarise=summarise,
    things="images",
    least=FINDING_DB,
    result=lambda row: f"gains {row.mean_gain:z.1f} dB over the blind guess",
    single=" on one image",
    reach=lambda gain: f", 95 % interval {gain.low:z.1f} to {gain.high:z.1f} dB",
    nothing="no image recovered better than a blind guess",
)
CAPTION = (
    "Each row is one image. The number below it is its PSNR, red where the attack gains more than one decibel over the "
    "blind guess. Pink pixels are unknown to the attack. Recovered images and blind guesses are paired with the "
    "originals by least squared error."
)
SHOWN = 12
"""Images on a page."""
SIDE = 180
"""CSS pixels of one."""
UNKNOWN = (1.0, 0.86, 0.86)
"""Colour of pixels that an attack knows nothing about."""


def image_findings(one: Attacked) -> Findings:
    """Table, picture and numbers of one run."""
    leak = one.leak
    more = {
        "classifier": None if leak is None else asdict(leak),
        "values_received": one.count.received,
        "unknowns": one.count.unknowns,
    }
    return findings_of(one, IMAGES, facts(one), partial(gallery, one), _update, more)


def _update(_: Target, __: Tensor, results: Sequence[Scored]) -> dict[str, Any]:
    return {"attacks": [{key: value for key, value in vars(one).items() if key != "images"} for one in results]}


def facts(one: Attacked) -> dict[str, str]:
    """What was attacked, for how long, labels and the count of numbers received, by name."""
    sizes = sorted({len(target.truth.rows) for target in one.targets})
    return {
        "attacked": f"{len(one.targets)} update{'' if len(one.targets) == 1 else 's'} of "
        f"{' or '.join(f'{size:,}' for size in sizes)} example{'' if sizes == [1] else 's'}",
        "search": f"at most {one.seconds:.3g} s for each attack on each update",
        **({} if one.leak is None else one.leak.facts),
        "equations": f"{one.count.received:,} numbers received, {one.count.equations:,} of them independent, for "
        f"{one.count.unknowns:,} unknowns in a batch of {one.count.examples:,}: "
        + ("at least as many as" if one.count.enough else "fewer than")
        + " an exact solution needs without noise",
    }


def pixels_of(image: Tensor, prior: Prior) -> np.ndarray:
    """(h, w, 3) in 0..1 from (C, h, w) in the units of the model; unknown pixels have the colour UNKNOWN."""
    low, high = prior.bounds
    scaled = ((image.double().cpu() - low) / (high - low)).clamp(0, 1)
    pixels = scaled.expand(3, *scaled.shape[1:]) if len(scaled) == 1 else scaled
    pixels = torch.where(pixels.isnan(), torch.tensor(UNKNOWN, dtype=pixels.dtype).view(3, 1, 1), pixels)
    return pixels.permute(1, 2, 0).numpy()


def gallery(one: Attacked, order: Sequence[str]) -> Gallery:
    """The first images of a run, each PSNR below: original, strongest attack, blind guess, the other attacks.

    A phone shows the first two without scrolling.
    """
    rows = []
    for target, blind, results in zip(one.targets, one.blind, one.results, strict=True):
        known = {result.attack: result for result in results}
        measured = results[0].blind if results else None
        assert isinstance(target.truth.inputs, Tensor)
        for index, truth in enumerate(target.truth.inputs):
            said = "" if measured is None else f"{measured[index]:.1f} dB"
            original = _shot(truth, one.prior, f"batch of {len(target.truth.rows)}")
            found = [_recovered(known.get(name), index, one.prior) for name in order]
            rows.append((original, *found[:1], _shot(blind[index], one.prior, said), *found[1:]))
    names = ("original", *map(shown_name, order[:1]), "blind guess", *map(shown_name, order[1:]))
    return Gallery(columns=names, rows=tuple(rows[:SHOWN]), caption=CAPTION, side=SIDE)


def _recovered(result: Scored | None, index: int, prior: Prior) -> Shot:
    """What an attack recovered: green where it is far better than the blind guess; empty where it did not apply."""
    if result is None:
        return Shot(uri="", words="does not apply")
    stuck = result.unexplained is not None and result.unexplained > CONVERGED
    close = result.psnr[index] - result.blind[index] > FINDING_DB
    words = f"{result.psnr[index]:.1f} dB" + (", did not converge" if stuck else "")
    return _shot(result.images[index], prior, words, style="bad" if close else "")


def _shot(image: Tensor, prior: Prior, words: str, style: Badge = "") -> Shot:
    """An image as PNG, with its own pixels: a page shows it larger."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray((255 * pixels_of(image, prior)).round().astype(np.uint8)).save(file, format="png", optimize=True)
    return Shot(uri="data:image/png;base64," + base64.b64encode(file.getvalue()).decode(), words=words, style=style)
