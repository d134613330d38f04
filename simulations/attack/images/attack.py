"""Attack the recorded updates of an image workload: pick updates, run every attack, score."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.inversion.prior import Count, Prior, blind_guess, count, prior_from
from fedlsg.attacks.observation import ThreatModel
from simulations.attack.images.catalogue import SMALL, attacks_named, strongest
from simulations.attack.images.classifier import ClassifierLeak, classifier_leak
from simulations.attack.images.score import Scored, in_order, scored
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.target import Options, Target, attempts, membership_of, pick
from simulations.report.progress import Tick
from simulations.workloads.base.workload import LoadedWorkload

PUBLIC_IMAGES = 2000


@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked:
    """Results of one run: by target the true images, the blind guess and what each attack got.

    refused: why an attack did not apply, by its name. membership: TPR at 1 % FPR of one payload for an example that is
    clipped, by the closed form; None without noise and for several local steps. leak: what the classifier's gradient
    says without a search; None where its bias was not sent. seconds: of one attack on one update, at most.
    """

    record: Record
    prior: Prior
    targets: tuple[Target, ...]
    blind: tuple[Tensor, ...]
    results: tuple[tuple[Scored, ...], ...]
    refused: dict[str, str]
    count: Count
    membership: float | None
    leak: ClassifierLeak | None
    seconds: float


def attack_images(record: Record, threat: ThreatModel, options: Options, tick: Tick) -> Attacked:
    """Attack images of each batch size.

    Raises ValueError for an unknown attack, and where no recorded update has such a batch.
    """
    named = None if options.attacks is None else attacks_named(options.attacks)
    prior = image_prior(record.base.workload)
    targets = pick(record, threat, options)
    results, blinds = [], []
    refused: dict[str, str] = {}
    grants = [target.truth.grant(threat) for target in targets]
    fitting = [
        strongest(target.seen, known, naive=options.naive) if named is None else named
        for target, known in zip(targets, grants, strict=True)
    ]
    options = options.budget(sum(map(len, fitting)), small=prior.size <= SMALL)
    for number, (target, known, chosen) in enumerate(zip(targets, grants, fitting, strict=True)):
        truth = target.truth.inputs
        assert isinstance(truth, Tensor)
        blind = in_order(blind_guess(prior, known, examples=len(truth)).inputs, truth.double())
        tried = attempts(
            chosen, target, known, prior, options, number=number, of=len(targets), refused=refused, tick=tick
        )
        results.append(tuple(scored(name, guess, truth, blind, prior, took) for name, guess, took in tried))
        blinds.append(blind)
    tick(1.0, "done")
    first = targets[0].seen
    return Attacked(
        record=record,
        prior=prior,
        targets=tuple(targets),
        blind=tuple(blinds),
        results=tuple(results),
        refused=refused,
        count=count(first, prior, threat, targets[0].truth.grant(threat)),
        membership=membership_of(first),
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
