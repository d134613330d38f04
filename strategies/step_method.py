"""The start of ``PrivateStep``: method, steps, sample rate, optimizer, and their defaults."""

import re
from collections.abc import Callable, Collection
from numbers import Integral
from typing import Any

from torch import nn

from fedlsg import user_code
from fedlsg.carriers import prepare_model
from fedlsg.carriers.probe.carrier import Draw
from fedlsg.config import check_real, declared
from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients import LossFunction
from fedlsg.gradients.losses import PerExampleLoss
from fedlsg.method import Method, Schedule
from fedlsg.state import PublicState, ServerState
from fedlsg.strategies import (
    check_settings,
    common_settings,
    give,
    own_settings,
    recipe,
    with_own,
)
from fedlsg.strategies.own_loop.examples import source_of_function
from fedlsg.strategies.own_loop.loop_account import Spending
from fedlsg.strategies.own_loop.user_inputs import Optimizers, make_own
from fedlsg.tensors import each
from fedlsg.training import ServerOptimizer
from fedlsg.training.auto import EPOCHS, auto_rounds, auto_schedule, auto_server, size_factor

AUTO = "auto"
"""The argument for a default."""
DENSE_RECIPE = "dpsgd"
"""The default recipe."""
SPARSE_RECIPE = "lsg"
"""The default recipe if settings of it are given."""
REGRESSION_LOSSES = (
    "MSELoss",
    "mse_loss",
    "L1Loss",
    "l1_loss",
    "SmoothL1Loss",
    "smooth_l1_loss",
    "HuberLoss",
    "huber_loss",
)
"""Names of torch's losses for regression."""
ADDRESS = re.compile(" at 0x[0-9a-f]+")
"""Addresses in the text of a method with functions of the user, which differ between processes."""
KEPT_SETTINGS = ("estimator", "sparsify_update", "ema")
"""Settings of the server that an own optimizer leaves in place."""


def planned_steps(
    sample_rate: float | None, steps: int | None, epochs: float | None
) -> tuple[float, int]:
    """q and T; missing ones follow from the number of epochs, q T.

    Raises ValueError for epochs next to both, or out of range.
    """
    numbers = {"sample_rate": sample_rate, "steps": steps, "epochs": epochs}
    check_real(**{name: value for name, value in numbers.items() if value is not None})
    if epochs is not None and (None not in (sample_rate, steps) or not 0 < epochs < float("inf")):
        raise ValueError(
            f"{epochs=}: expected a number above 0, and at most one of sample_rate and steps next "
            "to it"
        )
    wanted = EPOCHS if epochs is None else epochs
    if steps is None:
        if sample_rate is None:
            steps, sample_rate = auto_schedule(wanted)
        else:
            # ``check_spending`` refuses a rate out of range
            steps = auto_rounds(wanted, sample_rate) if 0 < sample_rate <= 1 else 1
    elif sample_rate is None:
        sample_rate = min(1.0, wanted / steps) if steps >= 1 else 1.0
    return sample_rate, steps


def is_regression(loss: LossFunction) -> bool:
    """Whether a loss is one of torch's for regression."""
    return isinstance(loss, PerExampleLoss) and loss.name in REGRESSION_LOSSES


def method_of(
    method: str | Method | Callable[..., Method],
    settings: dict[str, Any],
    learning_rate: float | str | None,
    optimizer: Optimizers | str | None,
    *,
    model: nn.Module,
    steps: int,
    regression: bool = False,
    arguments: Collection[str] = (),
) -> Method:
    """The method, with the given settings and for other ones the rates of ``fedlsg.training.auto``.

    method: name of a recipe, a recipe, or a Method.
    steps: T, for the rule.
    regression: whether the loss is one of regression, for the rule.
    arguments: other arguments of the caller, for the error about an unknown name.
    """
    if isinstance(optimizer, str):
        settings = settings | {"optimizer": optimizer}
    elif optimizer is not None:
        own = [
            name
            for name in declared(ServerOptimizer)
            if name in settings and name not in KEPT_SETTINGS
        ]
        own += [] if learning_rate is None else ["learning_rate"]
        if own:
            raise ValueError(f"{', '.join(own)}: your own optimizer has its own; give them to it")
    if not (isinstance(method, Method | str) or callable(method)):
        raise ValueError(
            f"method={type(method).__name__}: expected the name of a recipe, or a fedlsg.Method"
        )
    if isinstance(method, Method):
        settings = settings | ({} if learning_rate is None else {"learning_rate": learning_rate})
        if settings:
            raise ValueError(
                f"{', '.join(settings)}: a Method has its settings already; give the name of a "
                "recipe instead"
            )
        return method
    name = recipe_name(method, settings)
    check_settings(name, settings, also=arguments)
    if optimizer is None or isinstance(optimizer, str):
        size = size_factor(p for p in model.parameters() if p.requires_grad)
        settings = _with_rule(name, settings, learning_rate, steps, size, regression)
    return recipe(name, **settings)


def recipe_name(method: str | Callable[..., Method], settings: dict[str, Any]) -> str:
    """The name of a recipe; a function is registered, and "auto" follows from the settings."""
    if callable(method):
        name = user_code.name_of(method)
        give(name, method)
        return name
    if method != AUTO:
        return method
    of_recipes = settings.keys() - common_settings().keys()
    return SPARSE_RECIPE if of_recipes & own_settings(SPARSE_RECIPE) else DENSE_RECIPE


def _with_rule(
    name: str,
    settings: dict[str, Any],
    learning_rate: float | str | None,
    steps: int,
    size: float,
    regression: bool,
) -> dict[str, Any]:
    """The settings with a learning rate: the given one, or that of the rule with its optimizer."""
    if learning_rate not in (None, AUTO):
        return settings | {"learning_rate": learning_rate}
    optimizer = str(settings.get("optimizer", "adam")).lower()
    if learning_rate is None and (optimizer == "sgd" or "momentum" in settings):
        return settings
    dense = with_own(name, settings).carrier.dense
    rule = dict(auto_server(max(steps, 1), dense=dense, size=size, regression=regression))
    if optimizer != "adam":
        del rule["optimizer_options"]
    return rule | settings


def state_of(
    model: nn.Module,
    method: Method,
    schedule: Schedule,
    *,
    divisor: float,
    seed: int,
    classifier: str | None,
    probe: Draw | None,
    loss: LossFunction,
    example: tuple[Inputs, Inputs] | None,
    optimizer: Optimizers | str | None,
) -> ServerState:
    """The server's side of the loop: public state, with a user's own optimizer if there is one."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed < 2**63:
        raise ValueError(f"expected a seed from 0 to 2**63 - 1, a whole number, got {seed=!r}")
    prepare_model(model, method.carrier, classifier=classifier, seed=seed)
    source = None if probe is None else source_of_function(probe, model, loss)
    public = PublicState.start(
        model, method, schedule, seed=seed, classifier=classifier, source=source
    )
    public.check_repeatable()
    return ServerState(
        public,
        divisor=divisor,
        pruning_inputs=None if example is None else each(example[0], lambda t: t[:1]),
        optimizer=None
        if optimizer is None or isinstance(optimizer, str)
        else make_own(optimizer, model),
    )


def public_terms(spending: Spending, state: ServerState, method: Method) -> dict[str, Any]:
    """The terms that a saved state and the object that loads it must have in common."""
    own = "" if state.scheduler is not None else type(state.optimizer).__name__
    return {
        "num_examples": spending.num_examples,
        "sample_rate": spending.sample_rate,
        "steps": spending.steps,
        "delta": spending.delta,
        "seed": state.seed,
        "optimizer": own,
        "method": ADDRESS.sub("", repr(method)),
    }
