"""A small federated problem, and a client's step as a naive dense loop in float64.

Ito et al. 2023, Alg. 1, with one joint clip.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedlsg.noise
from fedlsg.carriers import Carrier, Dense, LowRank, RandomCarriers, carried_parameters
from fedlsg.frame import Frame
from fedlsg.masks.mask import Mask
from fedlsg.method import LocalTraining, Method, Schedule, client_step, make_frame
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import SecretStream, reproducible_stream
from tests.fedlsg.support.own_methods import CORE, OWN_MASK, PRECONDITIONED, TANGENT

EXAMPLES = 11
CLIP_ONLY = Mechanism(kind="clip-only", clip_norm=0.3)
NOISY = Mechanism(noise_multiplier=1.5, clip_norm=0.3)
NONE = Mechanism(kind="none")
EMPTY = LocalTraining(sample_rate=1e-12)
LOW_RANK = LowRank(rank=2)
DENSE = Dense()
FRAMES = {
    "lsg": (Mask(kind="units", sparsity=0.4), LOW_RANK),
    "rgp": (Mask(), LOW_RANK),
    "rgp-random": (Mask(), RandomCarriers(rank=3)),
    "rs on carriers": (Mask(kind="uniform", sparsity=0.6), LOW_RANK),
    "rs": (Mask(kind="uniform", sparsity=0.8), DENSE),
    "dpsgd": (Mask(), DENSE),
    "magnitude": (Mask(kind="magnitude", sparsity=0.6), DENSE),
    "drop": (Mask(kind="drop", drop="magnitude", sparsity=0.6), DENSE),
    "rs redrawn": (Mask(kind="uniform", sparsity=0.6, redraw="step"), DENSE),
    "core": (Mask(), CORE),
    "preconditioned": (Mask(), PRECONDITIONED),
    "own mask on core": (OWN_MASK, CORE),
    "own carriers": (Mask(kind="units", sparsity=0.4), TANGENT),
}
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 3)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 3)),
        nn.Conv2d(1, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.Tanh(),
        nn.Conv2d(6, 8, 3),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def weighted_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss an example; those of class 0 weigh little, so that a clip norm leaves some alone and
    cuts others.
    """
    return F.cross_entropy(outputs, targets, reduction="none") * (0.05 + targets)


@dataclass
class Problem:
    """One client with its data, and a frame of its model."""

    model: nn.Module
    frame: Frame
    inputs: Tensor
    targets: Tensor
    loss_fn: Callable[[Tensor, Tensor], Tensor] = weighted_cross_entropy

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[positions], self.targets[positions]

    def step(
        self,
        mechanism: Mechanism = CLIP_ONLY,
        local: LocalTraining | None = None,
        seed: int = 0,
        **changes,
    ) -> Tensor:
        """client_step with repeatable streams."""
        settings = {
            "frame": self.frame,
            "num_examples": len(self.inputs),
            "sampler": reproducible_stream(seed, "sampler"),
            "noise": reproducible_stream(seed, "noise"),
            "charge": lambda: None,
        }
        local = LocalTraining() if local is None else local
        return client_step(
            self.model,
            self.batch,
            self.loss_fn,
            mechanism=mechanism,
            local=local,
            **(settings | changes),
        )


def problem(
    mask: Mask | None = None,
    carrier: Carrier | None = None,
    *,
    make: Callable[[], nn.Module] = mlp,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """Rank-2 carriers and a unit mask unless told otherwise; gradient norms lie on both sides of
    CLIP_ONLY's C.
    """
    torch.manual_seed(5)
    model = make().to(dtype)
    method = Method(
        name="test",
        carrier=LowRank(rank=2) if carrier is None else carrier,
        mask=Mask(kind="units", sparsity=0.4) if mask is None else mask,
    )
    weights = dict(model.named_parameters())
    carried = carried_parameters(model, method.carrier)
    frame = make_frame(
        method,
        weights,
        weights,
        carried=carried,
        round=1,
        updates=0,
        schedule=Schedule(rounds=3),
        seed=0,
    )
    inputs = torch.randn(EXAMPLES, 9, dtype=dtype) * torch.linspace(
        0.05, 2, EXAMPLES, dtype=dtype
    ).unsqueeze(1)
    return Problem(model=model, frame=frame, inputs=inputs, targets=torch.randint(3, (EXAMPLES,)))


def dense_gradients(p: Problem, model: nn.Module, i: int) -> dict[str, Tensor]:
    """Autograd's gradient of one example's loss."""
    loss = p.loss_fn(model(p.inputs[i : i + 1]), p.targets[i : i + 1]).sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def project_and_keep(gradients: dict[str, Tensor], frame: Frame) -> Tensor:
    """dL = dW R^T and dR = L^T dW, or L^T dW R^T, for carried weights, and of all that the kept
    coordinates.
    """
    pieces = []
    for c in frame.coordinates:
        dW = gradients[c.name].reshape(len(gradients[c.name]), -1)
        if c.form.name != "tangent" and c.carried:
            pieces += [(c.L.T @ dW @ c.R.T).flatten()]
        else:
            pieces += (
                [dW.flatten()] if c.L is None else [(dW @ c.R.T).flatten(), (c.L.T @ dW).flatten()]
            )
    return torch.cat(pieces)[frame.indices]


def clipped(x: Tensor, mechanism: Mechanism, frame: Frame) -> Tensor:
    """The example's kept vector within C: as one, or block by block."""
    pieces = [x] if mechanism.clip == "joint" else x.split([b.kept for b in frame.blocks])
    return torch.cat(
        [
            piece * min(1.0, mechanism.clip_norm / max(float(piece.norm()), 1e-300))
            for piece in pieces
        ]
    )


def eq3(values: Tensor, frame: Frame) -> dict[str, Tensor]:
    """dW = dL R + L dR - L L^T dL R, L S R or S, entry by entry of the flat vector, zero where
    frozen.
    """
    flat = torch.zeros(frame.size, dtype=values.dtype)
    for position, value in zip(frame.indices.tolist(), values, strict=True):
        flat[position] = value
    gradients, start = {}, 0

    def take(*shape: int) -> Tensor:
        nonlocal start
        count = torch.Size(shape).numel()
        start += count
        return flat[start - count : start].reshape(shape)

    for c in frame.coordinates:
        if c.L is None or c.form.name == "preconditioned":
            gradients[c.name] = take(*c.shape)
        elif c.form.name == "core":
            gradients[c.name] = (c.L @ take(c.L.shape[1], c.R.shape[0]) @ c.R).reshape(c.shape)
        else:
            dL, dR = take(*c.L.shape), take(*c.R.shape)
            gradients[c.name] = (dL @ c.R + c.L @ dR - c.L @ c.L.T @ dL @ c.R).reshape(c.shape)
    return gradients


def naive_step(
    p: Problem,
    mechanism: Mechanism,
    local: LocalTraining,
    *,
    sampler: SecretStream,
    noise: SecretStream,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The accumulated result of K local steps, and the local change of every weight."""
    model = copy.deepcopy(p.model)
    velocity = accumulated = torch.zeros(p.frame.kept, dtype=torch.float64)
    for _ in range(local.steps):
        total = torch.zeros(p.frame.kept, dtype=torch.float64)
        for i, joins in enumerate(sampler.bernoulli(len(p.inputs), local.sample_rate).tolist()):
            if joins:
                x = project_and_keep(dense_gradients(p, model, i), p.frame)
                total += clipped(x, mechanism, p.frame) if mechanism.clips else x
        if mechanism.adds_noise:
            total = fedlsg.noise.add_gaussian(
                total, mechanism.noise_multiplier * mechanism.clip_norm, noise
            )
        velocity = local.momentum * velocity + total
        accumulated = accumulated + velocity
        with torch.no_grad():
            for name, gradient in eq3(velocity / local.expected_batch, p.frame).items():
                model.get_parameter(name).sub_(local.learning_rate * gradient)
    before = dict(p.model.named_parameters())
    return accumulated, {name: (w - before[name]).detach() for name, w in model.named_parameters()}


def snapshot(model: nn.Module) -> dict[str, tuple[Tensor, bool, object]]:
    """All that a step could leave behind in the model."""
    return {
        name: (p.detach().clone(), p.requires_grad, p.grad) for name, p in model.named_parameters()
    }


def assert_untouched(model: nn.Module, before: dict[str, tuple[Tensor, bool, object]]) -> None:
    """The model is as the snapshot has it, without hooks."""
    for name, parameter in model.named_parameters():
        value, requires_grad, grad = before[name]
        assert torch.equal(parameter, value)
        assert parameter.requires_grad == requires_grad
        assert parameter.grad is grad
    assert not any(module._forward_hooks for module in model.modules())
