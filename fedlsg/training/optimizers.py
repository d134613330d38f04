"""Server optimizers by name: the classes of ``torch.optim``, Yogi, and the options that a user may
give them.

    find_name("adamw")                                   "AdamW"
    read_options("AdamW", "betas=0.9 0.99, eps=1e-3")    {"betas": (0.9, 0.99), "eps": 0.001}

All of them only read noisy sums, so none changes an epsilon.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any, get_args, get_type_hints
from weakref import proxy

import torch
from torch import nn
from torch.optim import Optimizer

from fedlsg.config.choices import did_you_mean

SHORT = {"SGD": "sgd", "Adam": "adam"}
"""Names that are written in small letters, by class."""
SPARSE = ("SparseAdam",)
"""Classes for sparse gradients, which a noisy gradient is not."""
SET_ELSEWHERE = ("params", "lr", "weight_decay")
NOT_OFFERED = ("maximize", "foreach", "fused", "capturable", "differentiable")
"""Options that would climb instead of descend, or that choose how torch computes the same step."""

WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods of an optimizer that torch hides from its compiler."""


@cache  # of installed torch: for a process
def classes() -> Mapping[str, type[Optimizer]]:
    """The classes that need a gradient and a learning rate only, by the name that a user gives."""
    by_name: dict[str, type[Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "Yogi": Yogi,
    }
    for name, member in vars(torch.optim).items():
        if not (inspect.isclass(member) and issubclass(member, Optimizer)) or name in (
            *SHORT,
            *SPARSE,
        ):
            continue
        closure = inspect.signature(member.step).parameters.get("closure")
        # LBFGS: the loss, again and again
        asks = closure is not None and closure.default is inspect.Parameter.empty
        if "lr" in inspect.signature(member).parameters and not asks:
            by_name[name] = member
    return by_name


def names() -> tuple[str, ...]:
    """All names of ``optimizer``."""
    first = ("sgd", "adam")
    return (*first, *sorted(set(classes()) - set(first)))


def find_name(name: str) -> str:
    """The name as files write it; capital letters do not matter. Raises ValueError with the known
    names.
    """
    spellings = {known.lower(): known for known in names()}
    if name.lower() in spellings:
        return spellings[name.lower()]
    near = did_you_mean(name.lower(), spellings)
    raise ValueError(f"unknown optimizer {name!r}{near}; expected one of {', '.join(names())}")


def read_options(name: str, text: str) -> dict[str, Any]:
    """The options of a text such as ``"betas=0.9 0.99, eps=1e-3"``, with the types of the class'
    own defaults.

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
    """The optimizer. Raises ValueError for options out of range, parameters it cannot step, or a
    decay it has not.
    """
    cls: Any = classes()[name]
    takes = inspect.signature(cls).parameters
    if weight_decay and "weight_decay" not in takes:
        raise ValueError(
            f"optimizer {name!r} has no weight decay: leave weight_decay={weight_decay:g} out"
        )
    given: dict[str, Any] = dict(options)
    if "weight_decay" in takes:
        # ours, 0 if not given: torch's AdamW has another default
        given["weight_decay"] = weight_decay
    if name == "sgd":
        given["momentum"] = momentum
    try:
        optimizer = _without_compiler(cls)
        cls.__init__(optimizer, groups, lr=lr, **given)
        return optimizer
    except ValueError as error:
        with_options = (
            f" with {', '.join(f'{key}={value}' for key, value in options.items())}"
            if options
            else ""
        )
        raise ValueError(f"optimizer {name!r}{with_options}: {error}") from None


def _without_compiler(cls: type[Optimizer]) -> Optimizer:
    """An optimizer of this very class, to be initialized, without what torch wraps around some of
    its methods.

    The wrappers keep them away from a loop that is compiled, which no server update is, and each
    imports the compiler, which takes seconds.
    """
    optimizer: Optimizer = object.__new__(cls)
    plain = {name: inspect.unwrap(getattr(cls, name)) for name in WRAPPED}
    plain["step"] = Optimizer.profile_hook_step(torch.no_grad()(inspect.unwrap(cls.step)))
    for name, function in plain.items():
        # no cycle: it is freed with its last user
        setattr(optimizer, name, MethodType(function, proxy(optimizer)))
    return optimizer


def check_options(name: str, **given: Any) -> None:
    """Raise ValueError as ``build`` does, for a small matrix in place of a model."""
    build(name, [nn.Parameter(torch.zeros(2, 2))], **given)


@dataclass(frozen=True)
class Option:
    """``kind`` of a value; of a tuple the ``default``, whose length and empty places a value has to
    have.
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


@cache  # of installed torch: for a process
def options_of(name: str) -> Mapping[str, Option]:
    """What ``optimizer_options`` may say of a class, by name."""
    cls = classes()[name]
    hints = get_type_hints(cls.__init__)
    elsewhere = (*SET_ELSEWHERE, *NOT_OFFERED, *(("momentum",) if name == "sgd" else ()))
    return {
        option: Option(_kind(hints.get(option), parameter.default), parameter.default)
        for option, parameter in inspect.signature(cls).parameters.items()
        if option not in elsewhere
    }


def _kind(hint: Any, default: Any) -> type:
    """The type of an option: torch annotates numbers as floats whose default is an int."""
    if isinstance(default, bool | tuple):
        return type(default)
    if hint is int:
        return int
    return str if str in (hint, *get_args(hint)) else float


class Yogi(Optimizer):
    """Yogi as a server optimizer (Zaheer et al. 2018; Reddi et al. 2021, Algorithm 2, FedYogi).

    Symbols: g_t the noisy gradient, the paper's -Delta_t; tau = eps, the degree of adaptivity;
    m_0 = 0, v_0 = tau^2.
        m <- b1 m + (1 - b1) g
        v <- v - (1 - b2) g^2 sign(v - g^2)
        W <- W - lr m / (sqrt(v) + tau)
    v moves by a share of g^2 and not of their difference, so that it falls slowly after large
    gradients. As in the paper there is no bias correction. ``weight_decay`` adds W times it to g,
    as in Adam.
    Raises ValueError for numbers out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas) or not 0 < eps < float("inf"):
            raise ValueError(f"expected 0 <= {betas=} < 1 and 0 < {eps=} < inf")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            (first, second), tau = group["betas"], group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, buffers = p.grad.add(p, alpha=group["weight_decay"]), self.state[p]
                if not buffers:
                    buffers |= {
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.full_like(p, tau**2),
                    }
                buffers["exp_avg"].lerp_(g, 1 - first)
                square = g.square()
                buffers["exp_avg_sq"].addcmul_(
                    square, (buffers["exp_avg_sq"] - square).sign(), value=second - 1
                )
                p.addcdiv_(
                    buffers["exp_avg"], buffers["exp_avg_sq"].sqrt().add_(tau), value=-group["lr"]
                )
