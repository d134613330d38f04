"""Which parameters of a model are loaded, and which are drawn: the first come from training, the others are new.

A model is built under two public seeds. What is equal in both and not constant was not drawn: it was loaded.
"""

from typing import NamedTuple

from fedlsg.carriers import find_classifier
from fedlsg.training.auto import size_factor
from simulations.settings.settings import Settings
from simulations.workloads import LoadedWorkload
from simulations.workloads.base.model import build_model


class Loaded(NamedTuple):
    """Whether most trainable numbers below the classifier were loaded, whether it was, and the ``size_factor``."""

    body: bool
    classifier: bool
    size: float


def loaded_parts(settings: Settings, workload: LoadedWorkload) -> Loaded:
    """What a run starts from that was trained before."""
    name = settings.model or workload.default_model
    first, second = (build_model(workload, name, settings.seed + step) for step in (0, 1))
    head = workload.classifier or find_classifier(first)
    others = dict(second.named_parameters())
    count = {(part, loaded): 0 for part in ("body", "classifier") for loaded in (True, False)}
    for path, value in first.named_parameters():
        other = others.get(path)
        if not value.requires_grad or value.numel() < 2 or bool((value == value.flatten()[0]).all()):
            continue  # a bias or scale that begins as a constant says nothing
        part = "classifier" if path.startswith(f"{head}.") else "body"
        count[part, other is not None and other.shape == value.shape and bool((other == value).all())] += value.numel()
    body, classifier = (count[part, True] > count[part, False] for part in ("body", "classifier"))
    return Loaded(body, classifier, size_factor(value for value in first.parameters() if value.requires_grad))
