"""Server optimizers by name: the classes of ``torch.optim`` and Yogi, with their options.

    find_name("adamw")                                   "AdamW"
    read_options("AdamW", "betas=0.9 0.99, eps=1e-3")    {"betas": (0.9, 0.99), "eps": 0.001}

All of them only read noisy sums, so none changes an epsilon.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any, get_args, get_type_hints
from weakref import proxy

import torch
from torch import nn
from torch.optim import Optimizer

from fedlsg.config.choices import did_you_mean
from fedlsg.training.yogi import Yogi

SHORT = {"SGD": "sgd", "Adam": "adam"}
"""Names that are written in small letters, by class."""
SPARSE = ("SparseAdam",)
"""Classes for sparse gradients, which a noisy gradient is not."""
SET_ELSEWHERE = ("params", "lr", "weight_decay")
"""Parameters of a class that are no options, because a setting gives them."""
NOT_OFFERED = ("maximize", "foreach", "fused", "capturable", "differentiable")
"""Options that would climb instead of descend, or that choose how torch computes the same step."""

WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods of an optimizer that torch hides from its compiler."""


@cache  # depends on the installed torch alone
def classes() -> Mapping[str, type[Optimizer]]:
    """The classes that need a gradient and a learning rate only, by the name that a user gives."""
    by_name: dict[str, type[Optimizer]] = {
        name: getattr(torch.optim, class_name) for class_name, name in SHORT.items()
    }
    by_name["Yogi"] = Yogi
    for name, member in vars(torch.optim).items():
        if not (inspect.isclass(member) and issubclass(member, Optimizer)) or name in (
            *SHORT,
            *SPARSE,
        ):
            continue
        closure = inspect.signature(member.step).parameters.get("closure")
        # as LBFGS, which computes the loss several times in a step
        needs_loss = closure is not None and closure.default is inspect.Parameter.empty
        if "lr" in inspect.signature(member).parameters and not needs_loss:
            by_name[name] = member
    return by_name


def names() -> tuple[str, ...]:
    """All names of ``optimizer``."""
    first = tuple(SHORT.values())
    return (*first, *sorted(set(classes()) - set(first)))


def find_name(name: str) -> str:
    """The name as files write it; capital letters do not matter.

    Raises ValueError with the known names for an unknown one.
    """
    spellings = {known.lower(): known for known in names()}
    if name.lower() in spellings:
        return spellings[name.lower()]
    near = did_you_mean(name.lower(), spellings)
    raise ValueError(f"unknown optimizer {name!r}{near}; expected one of {', '.join(names())}")


def read_options(name: str, text: str) -> dict[str, Any]:
    """The options of a text such as ``"betas=0.9 0.99, eps=1e-3"``.

    Their types are those of the class' own defaults.
    Raises ValueError, naming the option and those that there are, for an unknown one or a value of
    another type.
    """
    known = options_of(name)
    values: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        option, sign, value = (part.strip() for part in pair.partition("="))
        if not sign or option in values:
            raise ValueError(
                f"optimizer_options={text!r}: expected NAME=VALUE, NAME=VALUE, each once, got "
                f"{pair!r}"
            )
        if option not in known:
            raise ValueError(
                f"optimizer_options: optimizer {name!r} has no option "
                f"{option!r}{did_you_mean(option, known)}; it has {', '.join(known)}"
            )
        values[option] = known[option].parse(option, value)
    return values


def build(
    name: str,
    groups: Iterable[Any],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    options: Mapping[str, Any],
) -> Optimizer:
    """The optimizer of a name, with learning rate, momentum, weight decay and options.

    momentum: of sgd; ``ServerOptimizer`` refuses one for others, which may have it as an option.
    Raises ValueError for options out of range, for parameters that it cannot step, and for a weight
    decay that it does not have.
    """
    cls: Any = classes()[name]
    takes = inspect.signature(cls).parameters
    if weight_decay and "weight_decay" not in takes:
        raise ValueError(
            f"optimizer {name!r} has no weight decay: leave weight_decay={weight_decay:g} out"
        )
    keywords: dict[str, Any] = dict(options)
    if "weight_decay" in takes:
        keywords["weight_decay"] = weight_decay  # also 0: torch's AdamW has another default
    if name == "sgd":
        keywords["momentum"] = momentum
    try:
        optimizer = _without_compiler(cls)
        cls.__init__(optimizer, groups, lr=lr, **keywords)
        return optimizer
    except ValueError as error:
        words = ", ".join(f"{key}={value}" for key, value in options.items())
        with_options = f" with {words}" if words else ""
        raise ValueError(f"optimizer {name!r}{with_options}: {error}") from None


def _without_compiler(cls: type[Optimizer]) -> Optimizer:
    """An optimizer of the class, not initialized, without torch's wrappers around its methods.

    The wrappers hide methods from the compiler, which compiles no server update. Each of them
    imports the compiler, which takes seconds.
    """
    optimizer: Optimizer = object.__new__(cls)
    methods = {name: inspect.unwrap(getattr(cls, name)) for name in WRAPPED}
    methods["step"] = Optimizer.profile_hook_step(torch.no_grad()(inspect.unwrap(cls.step)))
    for name, function in methods.items():
        # a proxy, so that no cycle keeps the optimizer alive
        setattr(optimizer, name, MethodType(function, proxy(optimizer)))
    return optimizer


def check_options(name: str, **given: Any) -> None:
    """Raise ValueError as ``build`` does, for a small matrix in place of a model."""
    build(name, [nn.Parameter(torch.zeros(2, 2))], **given)


@dataclass(frozen=True)
class Option:
    """An option of an optimizer's class.

    kind: type of its value.
    default: its default. A tuple has as many elements as the default; an element may be the word
        none where that of the default is None.
    """

    kind: type
    default: Any

    def parse(self, name: str, text: str) -> Any:
        """The value. Raises ValueError naming the option."""
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            if self.kind is not tuple:
                return self.kind(text)
            return tuple(
                None if default is None and word == "none" else float(word)
                for word, default in zip(text.split(), self.default, strict=True)
            )
        except (KeyError, ValueError):
            wanted = "true or false" if self.kind is bool else f"a value ({self.kind.__name__})"
            if self.kind is tuple:
                wanted = f"{len(self.default)} numbers with spaces between them"
            raise ValueError(
                f"optimizer_options: expected {wanted} for {name}, got {text!r}"
            ) from None


@cache  # depends on the installed torch alone
def options_of(name: str) -> Mapping[str, Option]:
    """The options that ``optimizer_options`` may give to a class, by name."""
    cls = classes()[name]
    hints = get_type_hints(cls.__init__)
    excluded = {*SET_ELSEWHERE, *NOT_OFFERED}
    if name == "sgd":
        excluded.add("momentum")  # a setting of its own
    return {
        option: Option(_kind(hints.get(option), parameter.default), parameter.default)
        for option, parameter in inspect.signature(cls).parameters.items()
        if option not in excluded
    }


def _kind(hint: Any, default: Any) -> type:
    """The type of an option; torch annotates some numbers as float whose default is an int."""
    if isinstance(default, bool | tuple):
        return type(default)
    if hint is int:
        return int
    return str if str in (hint, *get_args(hint)) else float
