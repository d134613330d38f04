"""What the gradient of the classifier gives away: labels, and the inputs of the classifier, scored.

Methods send the classifier dense, so no search is needed.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlsg.attacks.inversion.linear import features, labels_of
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import DoesNotApply, Knowledge, Observation, ThreatModel
from fedlsg.carriers import find_output_layer
from simulations.attack.recorded.target import Target

DRAWS = 200
"""Random guesses of labels; the blind guess is their mean."""


@dataclass(frozen=True, kw_only=True)
class ClassifierLeak:
    """labels: how many of ``examples`` labels were read right, as a multiset, without being granted; by_chance: how
    many as many labels drawn at random would be.

    features: mean cosine between the recovered and the true inputs of the classifier over ``singles`` updates of one
    example; None if there is none. cosine_of_expected: the same for the prior's expected input: the blind baseline.
    """

    labels: int
    by_chance: float
    examples: int
    features: float | None
    cosine_of_expected: float | None
    singles: int

    @property
    def facts(self) -> dict[str, str]:
        """Labels and features in words, by name."""
        labels = f"{self.labels} of {self.examples} read from the classifier's gradient alone"
        found = {"labels": f"{labels} (drawn at random: {self.by_chance:.1f})"}
        if self.features is not None:
            found["classifier input"] = (
                f"cosine {self.features:.3f} to the true one, for single examples (blind guess: "
                f"{self.cosine_of_expected:.3f})"
            )
        return found


def classifier_leak(targets: Iterable[Target], prior: Prior, threat: ThreatModel) -> ClassifierLeak | None:
    """Labels and features of all targets, B granted as the threat model has it; None if the method hides them."""
    right, chance, examples = 0, 0.0, 0
    cosines, blinds = [], []
    for target in targets:
        seen, size = target.seen, len(target.truth.labels)
        known = Knowledge(examples=target.truth.grant(threat).examples)
        try:
            labels = labels_of(seen, prior, known)
            found = features(seen, prior, known).inputs if known.examples == 1 else None
        except DoesNotApply:
            return None
        right += overlap(labels, target.truth.labels)
        chance += drawn_right(target, len(labels))
        examples += size
        if found is not None:
            assert isinstance(target.truth.inputs, Tensor)
            true = classifier_input(seen, target.truth.inputs)
            cosines.append(cosine(found, true))
            blinds.append(cosine(classifier_input(seen, prior.expected(1, labels)), true))
    if not examples:
        return None
    singles = len(cosines)
    return ClassifierLeak(
        labels=right,
        by_chance=chance,
        examples=examples,
        features=sum(cosines) / singles if singles else None,
        cosine_of_expected=sum(blinds) / singles if singles else None,
        singles=singles,
    )


def overlap(labels: Tensor, others: Tensor) -> int:
    """How many labels the two have in common, with repeats."""
    return (Counter(labels.tolist()) & Counter(others.tolist())).total()


def drawn_right(target: Target, count: int) -> float:
    """How many of ``count`` labels drawn from all classes alike are right, on average."""
    classes = int(target.seen.model.get_submodule(find_output_layer(target.seen.model)).out_features)  # type: ignore[arg-type]
    drawn = torch.randint(classes, (DRAWS, count), generator=torch.Generator().manual_seed(0))
    return sum(overlap(labels, target.truth.labels) for labels in drawn) / DRAWS


def classifier_input(seen: Observation, inputs: Tensor) -> Tensor:
    """The inputs of the classifier at W_t for these examples, (B, h)."""
    got: list[Tensor] = []
    module = seen.model.get_submodule(find_output_layer(seen.model))
    handle = module.register_forward_pre_hook(lambda _, args: got.append(args[0].detach()))
    try:
        with torch.no_grad():
            seen.model(inputs.to(next(seen.model.parameters())))
    finally:
        handle.remove()
    return got[0]


def cosine(found: Tensor, true: Tensor) -> float:
    """Cosine over the entries that were found; its absolute value, because without a bias the sign is open."""
    known = found.isfinite()
    return float(F.cosine_similarity(found[known].double(), true[known].double(), dim=0).abs())
