"""Observations from real frames and the client's own step, for all tests of attacks."""

import math
from collections import OrderedDict
from copy import deepcopy
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlsg import strategies
from fedlsg.attacks.observation import Observation
from fedlsg.carriers import carried_parameters, carried_sizes, prepare_model
from fedlsg.carriers.powersgd import decode, encode
from fedlsg.carriers.probe import Basis, ProbeSource, probe_basis
from fedlsg.frame.public import Public
from fedlsg.gradients.hooked_pass.supported import trainable
from fedlsg.method import Method, Schedule, initial_needed, make_frame
from fedlsg.randomness import reproducible_stream
from fedlsg.training.client_round import LocalTraining, client_step

CLIPPED = {"mechanism": "clip-only", "clip_norm": 0.1}
"""A clip that is active on every example: the noise-free payload of a client that clips."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss an example."""
    return F.cross_entropy(outputs, targets, reduction="none")


@cache
def scanned_digits() -> tuple[Tensor, Tensor]:
    """All images of scikit-learn's digits in [0, 16], and their labels. Its import takes
    seconds.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.from_numpy(data.images).double().unsqueeze(1), torch.from_numpy(data.target).long()


def digits(count: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Images (count, 1, 8, 8) in [0, 1], float64, and labels."""
    images, labels = scanned_digits()
    return images[start : start + count] / 16, labels[start : start + count].clone()


def mlp(
    activation: type[nn.Module] = nn.Tanh, *, hidden: int = 64, bias: bool = True, seed: int = 0
) -> nn.Module:
    """(B, 1, 8, 8) -> 64 -> hidden -> 10 in float64."""
    torch.manual_seed(seed)
    layers = OrderedDict(
        flatten=nn.Flatten(),
        hidden=nn.Linear(64, hidden, bias=bias),
        activation=activation(),
        classifier=nn.Linear(hidden, 10),
    )
    return nn.Sequential(layers).double()


def method(name: str, **settings: object) -> Method:
    """The recipe with rank 8 where it has one, a fixed mask, and an active clip without noise
    unless told otherwise.
    """
    own = strategies.own_settings(name)
    defaults = {"rank": 8, "cooling": False}
    chosen = {key: value for key, value in defaults.items() if key in own}
    return strategies.recipe(name, **{**CLIPPED, **chosen, **settings})


def observe(
    how: Method | str,
    model: nn.Module,
    inputs: Tensor | dict[str, Tensor],
    targets: Tensor,
    *,
    local: LocalTraining | None = None,
    dtype: torch.dtype = torch.float64,
    round: int = 3,
    seed: int = 0,
) -> Observation:
    """What the adversary sees of one client that takes every example in every local step.

    Model, carriers and payload have ``dtype``. The round is a later one: W differs from W_0, LoRA's
    B from 0.
    """
    how = method(how) if isinstance(how, str) else how
    model = prepare_model(deepcopy(model), how.carrier, classifier="classifier", seed=seed).to(
        dtype
    )
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if name.endswith(".up.weight"):
            p.data.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(p.shape[1]))
    weights = {name: p.detach() for name, p in trainable(model).items()}
    carried = carried_parameters(model, how.carrier, classifier="classifier")
    frozen = {
        f"{n}.base.weight": m.base.weight.detach()
        for n, m in model.named_modules()
        if hasattr(m, "base")
    }
    initial = {name: weights[name] * 0.9 for name in initial_needed(how, weights, carried)} | frozen
    frame = make_frame(
        how,
        weights,
        initial,
        carried=carried,
        round=round,
        updates=2,
        schedule=Schedule(rounds=round, sample_rate=0.5),
        seed=seed,
        classifier="classifier",
        basis=probed(how, model, weights, carried) if how.carrier.kind == "probe" else None,
    )
    local = local or LocalTraining(expected_batch=float(len(targets)))
    values = client_step(
        model,
        lambda at: (rows(inputs, at, dtype), targets[at]),
        cross_entropy,
        frame=frame,
        mechanism=how.mechanism,
        local=local,
        num_examples=len(targets),
        sampler=reproducible_stream(seed, "sampler"),
        noise=reproducible_stream(seed, "noise"),
        charge=lambda: None,
    )
    return Observation(
        model=model,
        loss_fn=cross_entropy,
        frame=frame,
        values=decode(encode(values, frame), frame),
        mechanism=how.mechanism,
        local=local,
        noise_std=how.mechanism.noise_std,
        round=round,
    )


def probed(
    how: Method, model: nn.Module, weights: dict[str, Tensor], carried: tuple[str, ...]
) -> Basis:
    """Carriers of a probe by random images."""
    source = ProbeSource(
        name="normal",
        draw=lambda count, generator: torch.randn(count, 1, 8, 8, generator=generator).double(),
        loss=cross_entropy,
        num_classes=10,
    )
    sizes = carried_sizes(how.carrier, weights, carried)
    return probe_basis(
        how.carrier,
        Public(weights=weights, carried=sizes, make_model=lambda: deepcopy(model)),
        source,
    )


def rows(
    inputs: Tensor | dict[str, Tensor], at: Tensor, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """Some examples: images in ``dtype``, tokens as the whole numbers that they are."""
    if isinstance(inputs, Tensor):
        return inputs[at].to(dtype)
    return {name: tensor[at] for name, tensor in inputs.items()}
