"""Attack the recorded updates of an image workload: closed forms first, then matching, of those that fit; score."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.attacks.inversion.linear import input_of_linear, labels_of, settle_scale
from fedlsg.attacks.inversion.matching import ATTACKS, match
from fedlsg.attacks.inversion.prior import Count, Prior, blind_guess, count, prior_from
from fedlsg.attacks.inversion.relu_batch import relu_batch
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation, ThreatModel
from fedlsg.attacks.search import Progress
from fedlsg.choices import REMOVED, choose
from simulations.attack.images.score import ClassifierLeak, Scored, classifier_leak, in_order, scored
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.rows import NAIVE
from simulations.attack.recorded.target import Attack, Options, Results, Target, attack_each, pick
from simulations.report.progress import Tick
from simulations.workloads.base.workload import LoadedWorkload

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


PUBLIC_IMAGES = 2000


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


def image_prior(workload: LoadedWorkload) -> Prior:
    """Shape, range, and the Gaussian around each class that public test images give.

    The range is from the least to the greatest value of each channel, as the model sees the images. Raises ValueError
    for inputs that are not images.
    """
    count = min(PUBLIC_IMAGES, len(workload.test))
    images, labels = workload.test.batch(torch.arange(count))
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise ValueError(f"workload {workload.name} holds no images: its inputs have no pixels to recover")
    low, high = value_range(images)
    every_class = workload.num_classes is not None and len(labels.unique()) == workload.num_classes
    return prior_from(images, labels if every_class else None, low=low, high=high)


def value_range(images: Float[Tensor, "public c h w"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Least and greatest value by channel; of a channel that is constant, those of all channels."""
    low, high = images.amin((0, 2, 3)), images.amax((0, 2, 3))
    flat = low == high
    low, high = torch.where(flat, low.min(), low), torch.where(flat, high.max(), high)
    return tuple(low.tolist()), tuple(high.tolist())
