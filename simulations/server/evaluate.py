"""Accuracy, loss and the workload's own metrics on public test splits, in all and by client.

For scores by client, the public test split is divided into parts that resemble the clients' rows:
by the column that made the clients, or with the class mix of each, by their scheme
(``parts_of_test``). Nothing is measured on private rows: the accuracy of a client on its own
training rows would be a release that no epsilon covers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from fedlsg.carriers.personal import personal_names
from fedlsg.gradients import LossFunction, trainable
from fedlsg.gradients.losses import CLASSES
from fedlsg.simulations.client.train import own_parameters
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.faults.client_test_rows import parts_of_test
from fedlsg.simulations.storage.feedback_box import FeedbackBox
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import LoadedWorkload, Split, to_device
from fedlsg.simulations.workloads.base import Metric, cross_entropy
from fedlsg.state import ServerState
from fedlsg.strategies.strategy import DivergedError
from fedlsg.user_code.objects import restored

FEW_ROWS = 8
"""Test rows that are enough to see whether the model still gives finite numbers."""
NONE: Mapping[str, Metric] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Score:
    """Scores of one split, or means over several splits with equal weights.

    accuracy: in 0..1; None if targets are no classes.
    loss: mean over the rows.
    by_split: the accuracy of each split.
    metrics: the workload's own metrics by name.
    by_class: test rows of each class, in the order of the classes, and how many of them are right,
        over all splits.
    """

    accuracy: float | None
    loss: float
    by_split: Mapping[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)
    by_class: Sequence[tuple[int, int]] = ()


class Evaluation:
    """Scores of a run's model: each round is evaluated once, also over several processes."""

    def __init__(
        self,
        state: ServerState,
        workload: LoadedWorkload,
        *,
        device: str,
        overall: Callable[[], Score] | None = None,
    ) -> None:
        """The evaluation of ``state``; ``overall``: measures instead if clients have own models."""
        self._state, self._workload, self._device, self._overall = state, workload, device, overall
        self._measured: tuple[int, Score] | None = None

    def measure(self) -> Score:
        """Accuracy and loss of the model as it is now."""
        if self._measured is None or self._measured[0] != self._state.round:
            if self._overall is not None:
                measured = self._overall()
            else:
                with self._state.evaluated() as model:
                    measured = score(model, self._workload, device=self._device)
            self._measured = self._state.round, measured
        return self._measured[1]

    def after_round(self, round: int, *, due: bool) -> Score | None:
        """The score if an evaluation is ``due``, else None.

        Raises DivergedError, due or not, if the loss is not finite.
        """
        score = self.measure() if due else None
        loss = self._loss_on_few_rows() if score is None else score.loss
        if not math.isfinite(loss):
            raise DivergedError(f"round {round} left a model whose test loss is {loss}")
        return score

    def _loss_on_few_rows(self) -> float:
        """The loss on ``FEW_ROWS``, for rounds that are not evaluated."""
        test = self._workload.test
        few = test.pick(torch.arange(min(FEW_ROWS, len(test))))
        with self._state.evaluated() as model:
            return evaluate(
                model, few, loss=self._workload.loss, classes=False, device=self._device
            ).loss

    def of_mean(self) -> Score | None:
        """The score of predicting the mean of the test targets, see ``score_of_mean``."""
        with self._state.evaluated() as model:
            return score_of_mean(model, self._workload, device=self._device)

    def state_dict(self) -> dict[str, Any] | None:
        """The last score in plain values; None before the first."""
        if self._measured is None:
            return None
        round, measured = self._measured
        return {"round": round, "score": asdict(measured)}

    def load_state_dict(self, saved: Mapping[str, Any] | None) -> None:
        """Continue from ``state_dict``."""
        self._measured = None if saved is None else (saved["round"], Score(**saved["score"]))


def score(
    model: nn.Module, workload: LoadedWorkload, *, device: str, batch_size: int = 200
) -> Score:
    """Evaluate on every test split of a workload (``workload.tests``).

    The means are unweighted: MNLI's matched and mismatched accuracies count the same, as the papers
    report them.
    """
    results = {
        name: evaluate(
            model,
            split,
            loss=workload.loss,
            metrics=workload.metrics,
            classes=workload.num_classes is not None,
            device=device,
            batch_size=batch_size,
        )
        for name, split in workload.tests.items()
    }
    scores = list(results.values())
    accuracies = {
        name: split_score.accuracy
        for name, split_score in results.items()
        if split_score.accuracy is not None
    }
    return Score(
        accuracy=sum(accuracies.values()) / len(accuracies) if accuracies else None,
        loss=sum(split_score.loss for split_score in scores) / len(scores),
        by_split=accuracies,
        metrics={
            name: sum(split_score.metrics[name] for split_score in scores) / len(scores)
            for name in workload.metrics
        },
        by_class=_sum_of_counts([split_score.by_class for split_score in scores]),
    )


def _sum_of_counts(splits: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Counts of each class over all splits, of which some may lack the last classes."""
    by_class = zip_longest(*splits, fillvalue=(0, 0))
    return [(sum(rows for rows, _ in one), sum(right for _, right in one)) for one in by_class]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Split,
    *,
    loss: LossFunction = cross_entropy,
    metrics: Mapping[str, Metric] = NONE,
    classes: bool = True,
    device: str,
    batch_size: int = 200,
) -> Score:
    """Scores over one whole split, in evaluation mode.

    The accuracy is None unless targets are ``classes``. Loss and metrics may work in place: each
    gets outputs and targets as the model and the split gave them.
    """
    # by module: a frozen part may be in evaluation mode before
    training = {module: module.training for module in model.modules()}
    model.eval()
    total = 0.0
    labels: list[Tensor] = []
    right: list[Tensor] = []
    seen: list[list[Tensor]] = []  # outputs and targets of each batch, for the metrics
    with restored(loss):  # clients of this process have the same one
        for rows in split.order(torch.arange(len(split))).split(batch_size):
            inputs, targets = split.batch(rows)
            inputs = to_device(inputs, device)
            outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            targets = targets.to(device)
            if metrics:
                kept = scores_of(outputs), targets
                seen.append([tensor.to("cpu", copy=True) for tensor in kept])
            if classes:
                labels.append(targets.flatten().cpu())
                right.append((classes_of(outputs, targets, loss) == targets).flatten().cpu())
            # last, since the loss may change its arguments
            total += float(loss(outputs, targets).sum())
    for module, mode in training.items():
        module.training = mode
    by_class = _counts_by_class(torch.cat(labels), torch.cat(right)) if classes else []
    return Score(
        accuracy=sum(count for _, count in by_class) / len(split) if classes else None,
        loss=total / len(split),
        by_split={},
        by_class=by_class,
        metrics={
            name: measure(name, metric, *map(torch.cat, zip(*seen, strict=True)))
            for name, metric in metrics.items()
        },
    )


def _counts_by_class(
    labels: Int64[Tensor, " n"], right: Bool[Tensor, " n"]
) -> list[tuple[int, int]]:
    """Rows of each class, and how many of them are right."""
    rows = torch.bincount(labels)
    right_rows = torch.bincount(labels[right], minlength=len(rows))
    return list(zip(rows.tolist(), right_rows.tolist(), strict=True))


def classes_of(outputs: Any, targets: Tensor, loss: LossFunction) -> Tensor:
    """The class that a model predicts for each example: the class with the largest score.

    If the model gives one number for two classes, it is the class with the smaller loss, whatever
    the number is: a logit, a probability, a margin.
    """
    scores = scores_of(outputs)
    if not has_one_number(scores) or getattr(loss, "name", "") in CLASSES:
        return scores.argmax(1)
    # copies: a loss may change its arguments
    loss_of_0, loss_of_1 = (
        loss(deepcopy(outputs), torch.full_like(targets, label)) for label in (0, 1)
    )
    return (loss_of_1 < loss_of_0).long()


def has_one_number(scores: Tensor) -> bool:
    """Whether a model gives one number for each example."""
    return scores.numel() == len(scores)


def scores_of(outputs: Any) -> Tensor:
    """The tensor of scores in a model's outputs.

    It is the output itself, its logits, or the first tensor with a batch dimension in a tuple, list
    or dict. Raises ValueError for outputs without one.
    """
    logits = getattr(outputs, "logits", outputs)
    if isinstance(logits, Mapping):
        logits = [logits["logits"]] if "logits" in logits else list(logits.values())
    items = logits if isinstance(logits, tuple | list) else [logits]
    tensors = [item for item in items if isinstance(item, Tensor) and item.ndim > 0]
    if not tensors:
        raise ValueError(
            "expected a model that returns a tensor, an object with logits, or a tuple or dict of "
            f"tensors, got {type(outputs).__name__} without a tensor that has a batch dimension: "
            "return one, batch first"
        )
    return tensors[0]


def measure(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """A metric of a whole split. Raises ValueError, naming it, if it fails or gives no number."""
    try:
        return float(metric(outputs, targets))
    except Exception as error:
        raise ValueError(
            f"metric {name!r} failed on outputs {tuple(outputs.shape)} and targets "
            f"{tuple(targets.shape)}: {type(error).__name__}: {error}"
        ) from error


@torch.no_grad()
def score_of_mean(model: nn.Module, workload: LoadedWorkload, *, device: str) -> Score | None:
    """Loss and metrics of predicting the mean of the public test targets for every example.

    A regression has to be better than that. None for classes, and if outputs do not have the form
    of the targets: the prediction is unknown then. A metric without a value for a constant is left
    out.
    """
    if workload.num_classes is not None:
        return None
    training = {module: module.training for module in model.modules()}
    model.eval()
    scores = [_of_mean(model, split, workload, device) for split in workload.tests.values()]
    for module, mode in training.items():
        module.training = mode
    finite = [score for score in scores if score is not None and math.isfinite(score.loss)]
    if len(finite) < len(scores):
        return None
    names = [name for name in workload.metrics if all(name in score.metrics for score in finite)]
    return Score(
        accuracy=None,
        loss=sum(score.loss for score in finite) / len(finite),
        by_split={},
        metrics={
            name: sum(score.metrics[name] for score in finite) / len(finite) for name in names
        },
    )


def _of_mean(model: nn.Module, split: Split, workload: LoadedWorkload, device: str) -> Score | None:
    """``score_of_mean`` of one split.

    None also if the loss is smaller one standard deviation away from the mean: outputs are
    something else than targets then, such as logits.
    """
    inputs, _ = split.batch(torch.arange(min(FEW_ROWS, len(split))))
    inputs, targets = to_device(inputs, device), split.labels
    outputs = scores_of(model(**inputs) if isinstance(inputs, dict) else model(inputs))
    if not targets.is_floating_point() or outputs[0].numel() != targets[0].numel():
        return None
    mean, deviation = targets.double().mean(0), targets.double().std(0, correction=0)

    def constant(value: Tensor) -> Tensor:
        row = value.to(targets.dtype).reshape(outputs.shape[1:])
        # a copy: losses and metrics may change their arguments
        return row.expand(len(targets), *row.shape).clone()

    with restored(workload.loss):
        try:
            at_mean, *others = (
                float(workload.loss(constant(value), targets.clone()).mean())
                for value in (mean, mean - deviation, mean + deviation)
            )
        except Exception:  # a loss of the user's own may take other outputs
            return None
    if at_mean > min(others):
        return None
    metrics = dict[str, float]()
    for name, metric in workload.metrics.items():
        with suppress(ValueError):
            value = measure(name, metric, constant(mean), targets.clone())
            metrics |= {name: value} if math.isfinite(value) else {}
    return Score(accuracy=None, loss=at_mean, by_split={}, metrics=metrics)


@dataclass(frozen=True, kw_only=True)
class ByClient:
    """Accuracies of the clients on their parts of the test split, in 0..1.

    accuracies: of each client; None if its part is empty.
    mean, worst, percentile_10: over the clients with a part; each client counts the same.
    """

    accuracies: Sequence[float | None]
    mean: float
    worst: float
    percentile_10: float

    @classmethod
    def of(cls, scores: Iterable[Score | None]) -> "ByClient | None":
        """The accuracies in these scores, one for each client; None without classes."""
        accuracies = [None if score is None else score.accuracy for score in scores]
        measured = np.array([accuracy for accuracy in accuracies if accuracy is not None])
        if not len(measured):
            return None
        return cls(
            accuracies=accuracies,
            mean=float(measured.mean()),
            worst=float(measured.min()),
            percentile_10=float(np.percentile(measured, 10)),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The entry "accuracy_by_client" of summary.json."""
        return asdict(self)


class ClientScores:
    """Scores of each client's model on its part of the test split.

    A client's model is the shared model with its personal parameters, if the method has some. They
    are in the clients' folders in the run directory of a simulation. With a private mechanism they
    are private themselves: they are made from noisy values.
    """

    def __init__(self, base: Base, state: ServerState, run: RunDir) -> None:
        self._base, self._state, self._run = base, state, run

    @cached_property  # the base never changes
    def _parts(self) -> Sequence[Int64[Tensor, " n"]]:
        """The test rows of each client."""
        return parts_of_test(self._base)

    @cached_property  # the base never changes
    def _names(self) -> tuple[str, ...]:
        """The names of the personal parameters."""
        personal = self._base.method.personal
        if not personal:
            return ()
        return personal_names(trainable(self._state.model), personal, self._state.public.classifier)

    def measure(self) -> list[tuple[int, Score | None]]:
        """For each client its number of test rows, and the scores on them; None without rows."""
        with self._state.evaluated() as model:
            return [
                (len(rows), self._score(model, client, rows))
                for client, rows in enumerate(self._parts)
            ]

    def _score(self, model: nn.Module, client: int, rows: Int64[Tensor, " n"]) -> Score | None:
        if not len(rows):
            return None
        workload, parameters = self._base.workload, trainable(model)
        personal: AbstractContextManager[object] = nullcontext()
        if self._names:
            size = sum(parameters[name].numel() for name in self._names)
            values = FeedbackBox(self._run.own(client), client).newest(self._state.round, size)
            personal = own_parameters(model, self._names, values)
        with personal:
            return evaluate(
                model,
                workload.test.pick(rows),
                loss=workload.loss,
                classes=workload.num_classes is not None,
                device=self._base.device,
            )

    def overall(self) -> Score:
        """Accuracy and loss over all test rows, each with the model of the client that has it."""
        measured = [(count, score) for count, score in self.measure() if score]
        total = sum(count for count, _ in measured)
        accuracy = sum(count * (score.accuracy or 0.0) for count, score in measured) / total
        loss = sum(count * score.loss for count, score in measured) / total
        return Score(
            accuracy=accuracy,
            loss=loss,
            by_split={name: accuracy for name in self._base.workload.tests},
        )
