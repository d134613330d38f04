"""Attack the recorded updates of an image workload: pick updates, run every attack, score."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlsg.attacks.guess import Guess
from fedlsg.attacks.inversion.blind import blind
from fedlsg.attacks.inversion.counting import Count, count
from fedlsg.attacks.inversion.matching import Progress
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import ThreatModel
from simulations.attack.images.catalogue import Attack, strongest
from simulations.attack.images.classifier import ClassifierLeak, classifier_leak
from simulations.attack.images.prior import image_prior
from simulations.attack.images.score import Scored, in_order, scored
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.target import Target, attempts, membership_of, pick
from simulations.report.terminal import Tick


@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked:
    """Results of one run: by target the true images, the blind guess and what each attack got.

    refused: why an attack did not apply, by its name. membership: TPR at 1 % FPR of one payload for an example that is
    clipped, by the closed form; None without noise and for several local steps. leak: what the classifier's gradient
    says without a search; None where its bias was not sent.
    """

    label: str
    record: Record
    prior: Prior
    targets: tuple[Target, ...]
    blind: tuple[Tensor, ...]
    results: tuple[tuple[Scored, ...], ...]
    refused: dict[str, str]
    count: Count
    membership: float | None
    leak: ClassifierLeak | None


def attack_images(
    record: Record,
    threat: ThreatModel,
    *,
    batches: Sequence[int],
    images: int,
    attacks: Sequence[Attack] | None,
    naive: bool,
    seconds: float,
    seed: int,
    tick: Tick,
) -> Attacked:
    """Attack up to ``images`` images of each batch size; ``seconds`` is the budget of one attack on one update.

    ``attacks`` None takes the strongest that fit. Raises ValueError where no recorded update has such a batch.
    """
    prior = image_prior(record.base.workload)
    targets = pick(record, threat, batches=batches, examples=images)
    results, blinds = [], []
    refused: dict[str, str] = {}
    for number, target in enumerate(targets):
        known = target.truth.grant(threat)
        chosen = strongest(target.seen, known, naive=naive) if attacks is None else attacks
        truth = target.truth.inputs
        assert isinstance(truth, Tensor)
        guess = in_order(blind(prior, known, examples=len(truth)).inputs, truth.double())

        def run(attack: Attack, generator: torch.Generator, progress: Progress) -> Guess:
            return attack.run(target.seen, known, prior, generator, seconds, progress)  # noqa: B023 - used at once

        tried = attempts(chosen, run, number=number, of=len(targets), seed=seed, refused=refused, tick=tick)
        found = [scored(attack.name, made, truth, guess, prior, took) for attack, made, took in tried]
        results.append(tuple(found))
        blinds.append(guess)
    tick(1.0, "done")
    first = targets[0].seen
    return Attacked(
        label=record.base.settings.method,
        record=record,
        prior=prior,
        targets=tuple(targets),
        blind=tuple(blinds),
        results=tuple(results),
        refused=refused,
        count=count(first, prior, threat, targets[0].truth.grant(threat)),
        membership=membership_of(first),
        leak=classifier_leak(targets, prior, threat),
    )
