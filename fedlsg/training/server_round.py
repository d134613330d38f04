"""The server's part of a round: sum, divide by a constant, lift by Eq. 3, step the optimizer.

The settings of the server's optimizer and its learning rates are here, too.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from fedlsg.config import Setting, check_declared
from fedlsg.frame import Frame, Group, group_of
from fedlsg.gradients import trainable
from fedlsg.masks import frozen_count
from fedlsg.tensors import AT_ONCE, at_once, to_device
from fedlsg.training.auto import fan_in_factor
from fedlsg.training.optimizers import (
    SHORT,
    build,
    check_options,
    find_name,
    options_of,
    read_options,
)

Estimator = Literal["eq3", "averaged"]
Schedule = Literal["constant", "linear", "cosine", "exponential", "step"]
LayerRates = Literal["equal", "fan-in"]

LearningRate = Annotated[
    float,
    Setting(
        "Learning rate of the server; auto: by the rule; x0.5: half of the default.",
        above=0,
        below=math.inf,
    ),
]
NormsRate = Annotated[
    float,
    Setting("Learning rate of norm layers, if not learning_rate.", above=0, below=math.inf),
]
ClassifierRate = Annotated[
    float,
    Setting("Learning rate of the classifier, if not learning_rate.", above=0, below=math.inf),
]
FinalRate = Annotated[
    float,
    Setting(
        "Learning rate at the end of the schedule; 0 without it.",
        above=0,
        below=math.inf,
    ),
]
Decay = Annotated[
    float,
    Setting("Weight decay of the server's optimizer.", at_least=0, below=math.inf),
]
Dropped = Annotated[
    float, Setting("Share of each lifted gradient that is dropped.", "share", at_least=0, below=1)
]
Name = Annotated[str, Setting("Server optimizer: sgd, adam, Yogi or another class of torch.optim.")]
Options = Annotated[
    str | None,
    Setting(
        "Options of the optimizer's class, as 'betas=0.9 0.99, eps=1e-3'.",
    ),
]
Ema = Annotated[
    float,
    Setting("Decay of the average of weights that is evaluated; 0: none.", at_least=0, below=1),
]

STEPS = (0.3, 0.6, 0.8)
"""Parts of a run after which the schedule "step" drops. The code of Yu et al. 2021 (RGP) divides by
5 there.
"""


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """Server side of a method.

    estimator: "eq3" lifts carriers by Eq. 3; "averaged" first averages the two noisy copies of the
        r x r core (unbiased only without a mask).
    optimizer: a class of torch.optim, or ``Yogi``.
    learning_rate: in the first round.
    final_learning_rate: where the schedule ends, one update after the last; 0 if None.
    schedule: from the first to the final learning rate. "step": in three equal drops, at ``STEPS``
        of the run.
    norms_learning_rate, classifier_learning_rate: replace ``learning_rate`` for their groups and
        follow the same schedule.
    layer_rates: "fan-in" multiplies the rate of a layer, its bias included, by (64 / fan_in)^(1/4),
        where fan_in is the number of weights of one of its units.
    sparsify_update: drops that part of each lifted weight gradient, where abs(W) is smallest (Ito
        et al. 2023, sec. 4.4, "direct sparsification").
    ema: if it is above 0, an exponential moving average of the weights is evaluated, with decay
        min(ema, (1 + t) / (10 + t)) after t updates (De et al. 2022).
    optimizer_options: see ``read_options``; without options that have a setting of their own
        (learning rate, weight decay, SGD's momentum).
    """

    estimator: Annotated[
        Estimator, Setting("Lift carriers by Eq. 3, or average the two copies of the core.")
    ] = "eq3"
    optimizer: Name = "sgd"
    learning_rate: LearningRate = 0.1
    final_learning_rate: FinalRate | None = None
    momentum: Annotated[float, Setting("Momentum of the server's SGD.", at_least=0, below=1)] = 0.0
    weight_decay: Decay = 0.0
    schedule: Annotated[Schedule, Setting("How the learning rate falls over the run.")] = "constant"
    norms_learning_rate: NormsRate | None = None
    classifier_learning_rate: ClassifierRate | None = None
    layer_rates: Annotated[
        LayerRates,
        Setting("Rates of layers: equal, or fan-in: times (64 / inputs of a unit)^(1/4)."),
    ] = "equal"
    sparsify_update: Dropped = 0.0
    ema: Ema = 0.0
    optimizer_options: Options = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", find_name(self.optimizer))
        check_declared(self)
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(
                f"optimizer {self.optimizer!r} has no setting momentum, as sgd has: it takes no "
                f"momentum={self.momentum}{_as_option(self.optimizer, self.momentum)}"
            )
        options = self.options
        # torch takes half a second to build one; those of ``SHORT`` are valid without options
        if options or self.optimizer not in SHORT.values():
            check_options(
                self.optimizer,
                lr=self.learning_rate,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                options=options,
            )
        if self.final_learning_rate is not None and self.schedule == "constant":
            raise ValueError(
                "final_learning_rate needs a schedule: linear, cosine, exponential or step"
            )
        if self.schedule in ("exponential", "step") and self.final_learning_rate is None:
            raise ValueError(f"schedule {self.schedule!r} needs final_learning_rate > 0")

    @property
    def options(self) -> dict[str, Any]:
        """``optimizer_options`` as keywords of the optimizer's class."""
        return read_options(self.optimizer, self.optimizer_options or "")

    def rate_of(self, group: Group) -> float:
        """First learning rate of a group of parameters."""
        rates = {"norms": self.norms_learning_rate, "classifier": self.classifier_learning_rate}
        rate = rates.get(group)
        return self.learning_rate if rate is None else rate

    def factor(self, update: int, updates: int) -> float:
        """The learning rate of a server update as a multiple of the first one.

        update: its number from 0.
        updates: of the run.
        """
        if self.schedule == "constant":
            return 1.0
        t = min(update / updates, 1.0)
        last = (self.final_learning_rate or 0.0) / self.learning_rate
        if self.schedule == "linear":
            return 1 + (last - 1) * t
        if self.schedule == "cosine":
            return last + (1 - last) * (1 + math.cos(math.pi * t)) / 2
        if self.schedule == "step":
            t = sum(t >= drop for drop in STEPS) / len(STEPS)
        return float(last**t)


def make_optimizer(
    parameters: Mapping[str, nn.Parameter],
    server: ServerOptimizer,
    *,
    updates: int,
    classifier: str = "",
) -> tuple[Optimizer, LambdaLR]:
    """The torch.optim optimizer and scheduler of a run, with one group for each learning rate.

    parameters: by name, in model order.
    updates: server updates of the run.
    classifier: path of the classifier.
    Raises ValueError for an optimizer that cannot step these parameters, such as Muon for vectors.
    """
    by_rate: dict[float, list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        group = group_of(name, tuple(parameter.shape), classifier)
        rate = server.rate_of(group) * _layer_factor(name, parameters, server)
        by_rate.setdefault(rate, []).append(parameter)
    groups = [{"params": members, "lr": rate} for rate, members in by_rate.items()]
    optimizer = build(
        server.optimizer,
        groups,
        lr=server.learning_rate,
        momentum=server.momentum,
        weight_decay=server.weight_decay,
        options=server.options,
    )
    return optimizer, LambdaLR(optimizer, lambda update: server.factor(update, updates))


def _layer_factor(
    name: str, parameters: Mapping[str, nn.Parameter], server: ServerOptimizer
) -> float:
    """The factor of a parameter's rate by ``layer_rates``, from its layer's fan-in."""
    layer = name.rpartition(".")[0]
    weight = parameters.get(f"{layer}.weight", parameters[name])
    if server.layer_rates == "equal" or weight.ndim < 2:
        return 1.0
    return fan_in_factor(math.prod(weight.shape[1:]))


def _as_option(optimizer: str, momentum: float) -> str:
    """The hint for an optimizer that has a momentum among its own options, else empty."""
    if "momentum" not in options_of(optimizer):
        return ""
    return f"; give optimizer_options='momentum={momentum:g}'"


def aggregate(updates: Sequence[Float[Tensor, " kept"]]) -> Float[Tensor, " kept"]:
    """The sum of the clients' values in float64, added in the order of ``updates`` (client order).

    Raises ValueError for no update, or updates of different lengths.
    """
    lengths = {len(update) for update in updates}
    if len(lengths) != 1:
        raise ValueError(f"expected updates of one length, got {sorted(lengths)}")
    total = updates[0].cpu().to(torch.float64, copy=True)
    for update in updates[1:]:
        for sum_, piece in zip(total.split(AT_ONCE), update.cpu().split(AT_ONCE), strict=True):
            sum_ += piece.double()  # within the cache: twice as fast as a sum of two types
    return total


def sparsify(gradient: Tensor, W: Tensor, sparsity: float) -> Tensor:
    """The gradient of a weight, with zeros in its floor(p size) entries of smallest abs(W).

    p is the sparsity (Ito et al. 2023, sec. 4.4).
    """
    if W.ndim < 2 or not sparsity:
        return gradient
    order = torch.argsort(W.detach().abs().flatten(), stable=True)
    smallest = order[: frozen_count(W.numel(), sparsity)]
    return gradient.flatten().index_fill(0, smallest, 0.0).reshape(gradient.shape)


def server_step(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    total: Float[Tensor, " kept"],
    *,
    frame: Frame,
    divisor: float,
    server: ServerOptimizer,
) -> None:
    """One server update: divide by a constant, lift by Eq. 3 (Ito et al. 2023), step the optimizer.

    divisor: public and fixed before the run: clients a round times q times the declared mean N_k,
        or clients a round alone at client level. It must not depend on which clients reply, or on a
        batch.
    scheduler: None if the optimizer is the user's own. Then every parameter's ``.grad`` is written
        before the step, and stays.
    Raises ValueError for a divisor that is not positive.
    """
    if not 0 < divisor < math.inf:
        raise ValueError(f"expected 0 < {divisor=} < inf")
    parameters = trainable(model)
    example = next(iter(parameters.values()))
    values = torch.empty(total.shape, dtype=widest(parameters.values()), device=example.device)
    size = at_once(values.device.type)
    # in pieces, because a second vector of all values may need more memory than anything else here
    for piece, of_total in zip(values.split(size), total.split(size), strict=True):
        piece.copy_(to_device([of_total], piece.device)[0] / divisor)
    averaged = server.estimator == "averaged"
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        p.grad = None  # a stale gradient of the user's, of a frozen parameter too, would move it
    if scheduler is not None and linear_in_the_gradient(optimizer) and not server.sparsify_update:
        rates = {
            id(p): -float(group["lr"]) for group in optimizer.param_groups for p in group["params"]
        }
        frame.add_to(
            parameters,
            values,
            {name: rates[id(p)] for name, p in parameters.items()},
            averaged=averaged,
        )  # no gradients: ``optimizer.step`` changes nothing, and the scheduler counts it
    else:
        for name, gradient in frame.gradients(values, averaged=averaged).items():
            p = parameters[name]
            p.grad = sparsify(gradient, p, server.sparsify_update).to(p.dtype)
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)


def widest(parameters: Iterable[Tensor]) -> torch.dtype:
    """The type that holds the numbers of all parameters without rounding."""
    return reduce(torch.promote_types, {p.dtype for p in parameters})


def linear_in_the_gradient(optimizer: Optimizer) -> bool:
    """Whether a step is W -= lr dW and no more: SGD without momentum or weight decay.

    Then dW need not be formed.
    """
    return isinstance(optimizer, SGD) and not any(
        group["momentum"] or group["weight_decay"] or group["maximize"]
        for group in optimizer.param_groups
    )
