"""What the classifier's own gradient gives away, scored: labels, and the inputs of the classifier.

Methods send the classifier dense, so that this needs no search (fedlsg/attacks/head.py).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlsg.attacks.guess import DoesNotApply
from fedlsg.attacks.head import features, labels_of
from fedlsg.attacks.observation import Knowledge, Observation
from fedlsg.attacks.prior import Prior
from fedlsg.carriers import find_classifier
from simulations.attack.target import Target


@dataclass(frozen=True, kw_only=True)
class ClassifierLeak:
    """labels: how many of ``examples`` labels were read right, as a multiset, without being granted.

    features: mean cosine between the recovered and the true inputs of the classifier over ``singles`` updates of one
    example; None where there is none. cosine_of_expected: the same for the prior's expected input: the blind baseline.
    """

    labels: int
    examples: int
    features: float | None
    cosine_of_expected: float | None
    singles: int

    @property
    def words(self) -> str:
        """A part of a sentence."""
        found = f"read off the classifier: {self.labels} of {self.examples} labels"
        if self.features is None:
            return found
        blind = f"blind guess {self.cosine_of_expected:.3f}"
        return f"{found}, its input for one example at cosine {self.features:.3f} ({blind})"


def classifier_leak(targets: Iterable[Target], prior: Prior) -> ClassifierLeak | None:
    """Labels and features of all targets, with B granted and labels not; None where the method hides them."""
    right = examples = 0
    cosines, blinds = [], []
    for target in targets:
        seen, size = target.seen, len(target.truth.labels)
        known = Knowledge(examples=size)
        try:
            labels = labels_of(seen, prior, known)
            found = features(seen, prior, known).inputs if size == 1 else None
        except DoesNotApply:
            return None
        right += (Counter(labels.tolist()) & Counter(target.truth.labels.tolist())).total()
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
        examples=examples,
        features=sum(cosines) / singles if singles else None,
        cosine_of_expected=sum(blinds) / singles if singles else None,
        singles=singles,
    )


def classifier_input(seen: Observation, inputs: Tensor) -> Tensor:
    """What the classifier of W_t gets for these inputs, (B, h)."""
    got: list[Tensor] = []
    module = seen.model.get_submodule(find_classifier(seen.model))
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
