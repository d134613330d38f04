"""A small data set with a private step on it, and what must hold of the step, as functions that are
True if it does.

They look the parts of the step up where the package does, so that a test can plant a mistake there.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

import fedlsg.strategies.own_loop.one_round
from fedlsg.privacy import Ledger
from fedlsg.randomness import SecretStream
from fedlsg.strategies.private_step import PrivateStep
from tests.strategies.small_federation import model

EXAMPLES = 40
GENERATOR = torch.Generator().manual_seed(1)
INPUTS = torch.randn(EXAMPLES, 12, generator=GENERATOR)
TARGETS = torch.randint(3, (EXAMPLES,), generator=GENERATOR)
TERMS: dict[str, Any] = {
    "num_examples": EXAMPLES,
    "sample_rate": 0.25,
    "steps": 8,
    "noise_multiplier": 1.5,
    "delta": 1e-3,
    "learning_rate": 0.5,
    "clip_norm": 0.4,
    "classifier": "classifier",
    "seed": 5,
}
PUBLIC = (torch.randn(5, 12, generator=GENERATOR), torch.randint(3, (5,), generator=GENERATOR))


def probe_inputs(count: int, generator: torch.Generator) -> Tensor:
    """Public inputs of a probe."""
    return torch.randn(count, 12, generator=generator)


RECIPES = {
    "lsg": {"rank": 2},
    "lsg averaged": {"rank": 2, "sparsity": 0.0, "estimator": "averaged"},
    "lsg per block": {"rank": 2, "clip": "per-block"},
    "lsg without residual": {"rank": 2, "residual": False},
    "rgp": {"rank": 2, "warmup": 2, "momentum": 0.9, "schedule": "cosine"},
    "rgp-random": {"rank": 2},
    "rs": {"sparsity": 0.5},
    "rs ranked": {"sparsity": 0.5, "ranking": "gradients"},
    "sparse-dpsgd": {"sparsity": 0.5},
    "dp-ssgd": {"prune": "random"},
    "dp-ssgd synflow": {"example": PUBLIC},
    "dp-ssgd snip": {"prune": "dp-snip"},
    "lora": {"rank": 2},
    "lsg-lora": {"rank": 2},
    "ffa-lora": {"rank": 2},
    "fed-svd": {"rank": 2},
    "fed-sb": {"rank": 2},
    "dp-powersgd": {"rank": 2},
    "probe": {"rank": 3, "out_rank": 4, "probes": 20, "refresh_rounds": 3, "probe": probe_inputs},
    "probe sparse": {
        "rank": 3,
        "out_rank": 4,
        "sparsity": 0.5,
        "probes": 20,
        "probe": probe_inputs,
    },
    "lsg-probe": {"rank": 2, "probes": 20, "refresh_rounds": 2, "probe": probe_inputs},
    "rgp-probe": {"rank": 2, "probes": 20, "probe": probe_inputs},
    "dp-kfc": {"probes": 20, "refresh_rounds": 3, "probe": probe_inputs},
    "gep": {"rank": 3, "probes": 20, "refresh_rounds": 3, "probe": probe_inputs},
    "gep biased": {"rank": 3, "biased": True, "probes": 20, "probe": probe_inputs},
    "lsg adam": {"rank": 2, "optimizer": "adam"},
    "linear-probe": {},
    "bitfit": {},
    "dpsgd": {"optimizer": "adam", "ema": 0.9},
    "dpsgd noise only": {"mechanism": "noise-only", "delta": None},
    "dpsgd clip only": {"mechanism": "clip-only", "noise_multiplier": None},
    "sgd": {"noise_multiplier": None},
}


def terms(**changes: Any) -> dict[str, Any]:
    """``TERMS`` with changes; None takes one away."""
    return {name: value for name, value in (TERMS | changes).items() if value is not None}


def batch(positions: Tensor) -> tuple[Tensor, Tensor]:
    return INPUTS[positions], TARGETS[positions]


def private_step(net: nn.Module | None = None, loss: Any = None, **changes: Any) -> PrivateStep:
    """A private step of the small model, reproducible if a test says so."""
    return PrivateStep(
        model() if net is None else net,
        nn.CrossEntropyLoss() if loss is None else loss,
        **terms(**changes),
    )


def made(name: str, **more) -> PrivateStep:
    """A reproducible private step of a case."""
    return private_step(method=name.split()[0], reproducible=True, **RECIPES[name] | more)


def weights(step: PrivateStep) -> Tensor:
    return torch.cat([p.detach().flatten() for p in step.model.parameters()])


def without_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is 0: what moves the weights is noise alone."""
    return (outputs * 0).sum(1)


def noise_of(steps: int = 20, **changes: Any) -> Tensor:
    """What moved the weights in each of several steps (steps, d) without a signal, over its nominal
    deviation.
    """
    step = private_step(loss=without_gradient, **({"method": "dpsgd", "steps": steps} | changes))
    moved, before = [], weights(step)
    for _ in range(steps):
        step.step(batch)
        moved.append(weights(step) - before)
        before = weights(step)
    nominal = 0.5 * 1.5 * 0.4 / (TERMS["sample_rate"] * EXAMPLES)
    return torch.stack(moved) / nominal


def noise_is_full() -> bool:
    """Every coordinate moves by noise of deviation sigma C lr / (q N)."""
    noise = noise_of()
    return abs(float(noise.square().mean()) - 1) < 6 * math.sqrt(2 / noise.numel())


def noise_is_full_in_empty_batches(steps: int = 8) -> bool:
    """A batch without examples is a step as any other: noise, and a charge."""
    step = private_step(method="dpsgd", sample_rate=1e-9)
    moved, nominal = [], 0.5 * 1.5 * 0.4 / (1e-9 * EXAMPLES)
    for _ in range(steps):
        before = weights(step)
        step.step(batch)
        moved.append((weights(step) - before) / nominal)
    noise = torch.cat(moved)
    full = abs(float(noise.square().mean()) - 1) < 6 * math.sqrt(2 / noise.numel())
    return full and len(step._account.ledger.entries) == steps


def noise_is_fresh() -> bool:
    """The noise of several steps is independent: its sum has their number as its variance."""
    noise = noise_of()
    return abs(float(noise.sum(0).square().mean()) / len(noise) - 1) < 6 * math.sqrt(
        2 / noise.shape[1]
    )


def noise_is_where_the_mask_keeps() -> bool:
    """Of a random mask the kept coordinates move, in every step the same of an epoch, and no other
    one.
    """
    noise = noise_of(steps=3, method="rs", sparsity=0.5, cooling=False)  # one epoch
    kept = private_step(method="rs", sparsity=0.5, cooling=False)._state.frame(1).indices
    moved = (noise != 0).any(0)
    return bool(moved[kept].all()) and int(moved.sum()) == len(kept)


def the_divisor_is_public() -> bool:
    """Without clip and noise a step moves by -lr / (q N) times autograd's sum over its batch,
    whatever its size is.
    """
    step = private_step(method="sgd", noise_multiplier=None, clip_norm=None, reproducible=True)
    drawn: list[Tensor] = []
    before = weights(step)
    step.watch(lambda plan, rows, values: drawn.append(rows))
    step.step(batch)
    rows = drawn[-1]
    assert len(rows) != TERMS["sample_rate"] * EXAMPLES
    loss = nn.functional.cross_entropy(
        (net := model())(INPUTS[rows]), TARGETS[rows], reduction="sum"
    )
    total = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    wanted = -0.5 * total / (TERMS["sample_rate"] * EXAMPLES)
    return torch.allclose(weights(step) - before, wanted, rtol=1e-4, atol=1e-6)


def charged_before_the_batch_is_drawn(monkeypatch: Any) -> bool:
    """The entry is in the ledger's file when the sampler draws, and not before: until then rows are
    made up.
    """
    seen: list[int] = []
    step = private_step(method="dpsgd")

    class Stream(SecretStream):
        def bernoulli(self, count: int, probability: float) -> Tensor:
            seen.append(len(Ledger(step._account.ledger.path, client=0).entries))
            return super().bernoulli(count, probability)

    with monkeypatch.context() as patch:
        patch.setattr(
            fedlsg.strategies.own_loop.one_round, "secret_stream", lambda: Stream(bytes(32))
        )
        step.step(batch)
    return seen[-1:] == [1] and not any(seen[:-1])
