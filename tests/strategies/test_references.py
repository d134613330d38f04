"""Recorded payloads and the next weights, round after round, against the papers written out.

The references share with the package public draws (``public_generator`` and its labels), the draw of
a batch and the noise of a repeatable stream, and of GEP the anchors, which are public. Carriers come
from Gram-Schmidt as in the papers, gradients from autograd, one example at a time, all in float64.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.carriers.probe import ProbeSource
from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, Schedule, client_step
from fedlsg.noise import add_gaussian
from fedlsg.randomness import public_generator, reproducible_stream
from fedlsg.state.public_state import PublicState
from fedlsg.state.server_state import ServerState
from fedlsg.strategies import recipe

SEED, ROUNDS, STEPS_AN_EPOCH, EXAMPLES, DIVISOR = 4, 8, 4, 11, 3.0
SCHEDULE = Schedule(rounds=ROUNDS, sample_rate=1 / STEPS_AN_EPOCH)
EPOCHS = ROUNDS // STEPS_AN_EPOCH
C, SIGMA, RATE, MOMENTUM, DECAY = 0.3, 0.7, 0.4, 0.9, 0.01
SERVER = {"learning_rate": RATE, "momentum": MOMENTUM, "weight_decay": DECAY}
NOISE = {"clip_norm": C, "noise_multiplier": SIGMA}
CLOSE = {"rtol": 1e-7, "atol": 1e-9}
PROBES = ProbeSource(
    name="normal numbers",
    draw=lambda count, generator: torch.randn(count, 9, generator=generator).double(),
    loss=lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
    num_classes=3,
)
Weights = dict[str, Tensor]
Pieces = dict[tuple[str, str], Tensor]
"""What is sent of an example by parameter and part, in the order of the payload."""


def net() -> nn.Module:
    torch.manual_seed(8)
    made = nn.Sequential(
        nn.Unflatten(1, (1, 3, 3)),
        nn.Conv2d(1, 12, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(12, 10, 3),
        nn.Flatten(),
    )
    made.add_module("classifier", nn.Linear(10, 3))
    return made.double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    scale = torch.linspace(0.05, 2, EXAMPLES).unsqueeze(1)
    return (
        (torch.randn(EXAMPLES, 9, generator=generator) * scale).double(),
        torch.randint(3, (EXAMPLES,), generator=generator),
    )


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def gram_schmidt(A: Tensor) -> Tensor:
    """Column after column over its norm, then out of the rest, as the authors' ``orthogonalize``."""
    A = A.clone()
    for i in range(A.shape[1]):
        A[:, i] /= A[:, i].norm()
        for j in range(i + 1, A.shape[1]):
            A[:, j] -= (A[:, i] @ A[:, j]) * A[:, i]
    return A


def power_step(target: Tensor, rank: int, round: int, name: str) -> tuple[Tensor, Tensor]:
    """Algorithm 2 of RGP and LSG."""
    A = target.flatten(1)
    start = torch.randn(
        rank, A.shape[1], generator=public_generator(SEED, "carriers", round, name)
    ).double()
    L = gram_schmidt(A @ start.T)
    return L, gram_schmidt(A.T @ L).T


def least(values: Tensor, share: float) -> list[int]:
    """Places of the floor(share n) smallest."""
    order = sorted(range(len(values)), key=lambda i: (float(values[i]), i))
    return order[: math.floor(share * len(values) + 1e-9)]


@dataclass
class Reference:
    """Weights now and at the start, and what the server keeps between rounds."""

    weights: Weights
    round: int = 1
    start: Weights = field(init=False)
    velocity: Weights = field(init=False)
    frame: Frame | None = None

    def __post_init__(self) -> None:
        self.start = {name: W.clone() for name, W in self.weights.items()}
        self.velocity = {name: torch.zeros_like(W) for name, W in self.weights.items()}

    @property
    def epoch(self) -> int:
        return (self.round - 1) // STEPS_AN_EPOCH

    def sent(self, gradients: Weights) -> Pieces:
        """All gradients as they are."""
        return {(name, "dense"): g for name, g in gradients.items()}

    def frozen(self, pieces: Pieces) -> Tensor:
        """False everywhere: which of the flat coordinates are frozen."""
        return torch.zeros(sum(p.numel() for p in pieces.values()), dtype=torch.bool)

    def clip(self, x: Tensor, pieces: Pieces, kept: Tensor) -> Tensor:
        return x * min(1.0, C / max(float(x.norm()), 1e-300))

    def lift(self, pieces: Pieces) -> Weights:
        return {name: value for (name, _), value in pieces.items()}

    def payload(self, gradients: list[Weights], noise_std: float) -> Tensor:
        """The noisy sum of the clipped kept values of the examples that joined."""
        zeros = self.sent({name: torch.zeros_like(W) for name, W in self.weights.items()})
        kept = ~self.frozen(zeros)
        total = torch.zeros(int(kept.sum()), dtype=torch.float64)
        for one in gradients:
            pieces = self.sent(one)
            x = torch.cat([piece.flatten() for piece in pieces.values()])[kept]
            total += self.clip(x, pieces, kept)
        noisy = add_gaussian(total, noise_std, reproducible_stream(self.round, "noise"))
        full = torch.zeros(len(kept), dtype=torch.float64)
        full[kept] = noisy
        values = full.split([piece.numel() for piece in zeros.values()])
        self.received = {
            key: value.reshape(piece.shape)
            for (key, piece), value in zip(zeros.items(), values, strict=True)
        }
        self.kept, self.full = kept, full
        return noisy

    def rate(self, name: str) -> float:
        return RATE

    def decay(self, name: str) -> float:
        return DECAY

    def step(self) -> None:
        """Momentum SGD on what the received values imply."""
        for name, gradient in self.lift(self.received).items():
            W = self.weights[name]
            g = gradient.reshape(W.shape) / DIVISOR + self.decay(name) * W
            self.velocity[name] = MOMENTUM * self.velocity[name] + g
            self.weights[name] = W - self.rate(name) * self.velocity[name]
        self.round += 1


CARRIED = ("1.weight", "3.weight")


@dataclass
class LowRank(Reference):
    """dL and dR of the carried kernels (Eq. 8), lifted by Eq. 3."""

    rank: int = 2

    def target(self, name: str) -> Tensor:
        return self.weights[name]

    def pair(self, name: str) -> tuple[Tensor, Tensor]:
        return power_step(self.target(name), self.rank, self.round, name)

    def sent(self, gradients: Weights) -> Pieces:
        pieces: Pieces = {}
        for name, g in gradients.items():
            if name in CARRIED:
                L, R = self.pair(name)
                pieces[name, "L"] = g.flatten(1) @ R.T
                pieces[name, "R"] = (L.T @ g.flatten(1)).reshape(len(R), g.shape[1], -1)
            else:
                pieces[name, "dense"] = g
        return pieces

    def lift(self, pieces: Pieces) -> Weights:
        found: Weights = {}
        for name in self.weights:
            if name not in CARRIED:
                found[name] = pieces[name, "dense"]
                continue
            L, R = self.pair(name)
            dL, dR = pieces[name, "L"], pieces[name, "R"].flatten(1)
            found[name] = dL @ R + L @ dR - L @ L.T @ dL @ R
        return found


@dataclass
class Units(LowRank):
    """LSG: rows of dL and columns of dR of the least important units are frozen; ``choose`` says
    which of a kernel and its carriers.
    """

    share: float = 0.4
    choose: Callable[["Units", str, str], list[int]] = lambda self, name, part: []

    def frozen(self, pieces: Pieces) -> Tensor:
        found = []
        for (name, part), piece in pieces.items():
            grid = torch.zeros(piece.shape, dtype=torch.bool)
            for unit in self.choose(self, name, part) if part != "dense" else []:
                grid.select(0 if part == "L" else 1, unit).fill_(True)
            found.append(grid.flatten())
        return torch.cat(found)


def by_carriers(self: Units, name: str, part: str) -> list[int]:
    """LSG sec. 4.4: row sums of abs(L), column sums of abs(R), of a channel over its taps."""
    L, R = self.pair(name)
    channels = self.weights[name].shape[1]
    values = L.abs().sum(1) if part == "L" else R.abs().reshape(self.rank, channels, -1).sum((0, 2))
    return least(values, self.share)


def by_weights(self: Units, name: str, part: str) -> list[int]:
    """LSG Eq. 4-7."""
    W = self.weights[name].abs()
    return least(W.sum((1, 2, 3)) if part == "L" else W.sum((0, 2, 3)), self.share)


def at_random(self: Units, name: str, part: str) -> list[int]:
    """LSG sec. 4.4: as many, drawn again every epoch."""
    units = self.weights[name].shape[0 if part == "L" else 1]
    order = torch.randperm(units, generator=public_generator(SEED, "units", self.epoch, name, part))
    return order[: math.floor(self.share * units + 1e-9)].tolist()


@dataclass
class RandomMask(Reference):
    """RS, Algorithm 1: the flat coordinates that an epoch's mask, or one of its k, freezes."""

    share: float = 0.5
    masks: int = 1
    clips: bool = True

    def frozen(self, pieces: Pieces) -> Tensor:
        frozen = super().frozen(pieces)
        steps = (self.round - 1) % STEPS_AN_EPOCH
        now = self.epoch * self.masks + steps // (STEPS_AN_EPOCH // self.masks)
        share = self.share * now / (self.masks * EPOCHS - 1)  # the authors' train.py
        order = torch.randperm(len(frozen), generator=public_generator(SEED, "mask", now))
        frozen[order[: math.floor(share * len(frozen) + 1e-9)]] = True
        return frozen

    def clip(self, x: Tensor, pieces: Pieces, kept: Tensor) -> Tensor:
        return super().clip(x, pieces, kept) if self.clips else x


@dataclass
class Ranked(Reference):
    """RS, Algorithm 4: the lowest means of the last epoch's noisy gradients, frozen ones with noise
    alone.
    """

    share: float = 0.5
    sums: dict[int, Tensor] = field(default_factory=dict)

    def frozen(self, pieces: Pieces) -> Tensor:
        frozen = super().frozen(pieces)
        if self.epoch:
            mean = self.sums[self.epoch - 1].abs() / STEPS_AN_EPOCH
            frozen[least(mean, self.share * self.epoch / (EPOCHS - 1))] = True
        return frozen

    def step(self) -> None:
        noisy, frozen = self.full.clone(), ~self.kept
        noisy[frozen] = (
            SIGMA
            * C
            * torch.randn(
                int(frozen.sum()),
                generator=public_generator(SEED, "memory", self.round),
                dtype=torch.float64,
            )
        )
        self.sums[self.epoch] = self.sums.get(self.epoch, 0) + noisy
        super().step()


@dataclass
class Convolutions(Reference):
    """SNF: the smallest weights of W_0 of each convolution."""

    share: float = 0.5

    def frozen(self, pieces: Pieces) -> Tensor:
        grids = []
        for (name, _), piece in pieces.items():
            grid = torch.zeros(piece.numel(), dtype=torch.bool)
            if piece.ndim == 4:
                grid[least(self.start[name].abs().flatten(), self.share)] = True
            grids.append(grid)
        return torch.cat(grids)


@dataclass
class Authors(LowRank):
    """RGP's code: weights over their norms, the classifier's gradient divided before the clip and
    never multiplied again.
    """

    scale: float = 0.01

    def target(self, name: str) -> Tensor:
        W, W_0 = self.weights[name], self.start[name]
        return W / W.norm() - W_0 / W_0.norm() if self.round > 1 else W

    def sent(self, gradients: Weights) -> Pieces:
        scaled = {
            name: g * (self.scale if name.startswith("classifier") else 1)
            for name, g in gradients.items()
        }
        return super().sent(scaled)

    def decay(self, name: str) -> float:
        """The one difference: the classifier's decay is divided, too."""
        return DECAY * (self.scale if name.startswith("classifier") else 1)


@dataclass
class Left(LowRank):
    """RGP's code for images: dL alone."""

    def sent(self, gradients: Weights) -> Pieces:
        return {key: piece for key, piece in super().sent(gradients).items() if key[1] != "R"}

    def lift(self, pieces: Pieces) -> Weights:
        return {
            name: pieces[name, "L"] @ self.pair(name)[1]
            if name in CARRIED
            else pieces[name, "dense"]
            for name in self.weights
        }


@dataclass
class Embedded(RandomMask):
    """GEP in public anchors, and RS over what it sends: embeddings, then rests."""

    residual: float = 0.4

    def anchors(self, name: str) -> Tensor:
        assert self.frame is not None
        return next(c.L for c in self.frame.coordinates if c.name == name)

    def sent(self, gradients: Weights) -> Pieces:
        cores: Pieces = {}
        rests: Pieces = {}
        for name, g in gradients.items():
            L = self.anchors(name)
            cores[name, "core"] = L.T @ g.flatten()
            rests[name, "rest"] = (g.flatten() - L @ cores[name, "core"]) / self.residual
        return cores | rests

    def clip(self, x: Tensor, pieces: Pieces, kept: Tensor) -> Tensor:
        cores = sum(piece.numel() for (_, part), piece in pieces.items() if part == "core")
        bound, cut = C / math.sqrt(2), int(kept[:cores].sum())
        sides = [x[:cut], x[cut:]]
        return torch.cat([s * min(1.0, bound / max(float(s.norm()), 1e-300)) for s in sides])

    def lift(self, pieces: Pieces) -> Weights:
        return {
            name: self.anchors(name) @ pieces[name, "core"] + self.residual * pieces[name, "rest"]
            for name in self.weights
        }


UNITS = {"rank": 2, "sparsity": 0.4}
RGP = {"rank": 2, "warmup": 1}
CASES: dict[str, tuple[str, dict[str, object], Callable[[Weights], Reference]]] = {
    "units by carriers": (
        "lsg",
        UNITS | {"importance": "carriers"},
        lambda W: Units(W, choose=by_carriers),
    ),
    "random units": ("lsg", UNITS | {"importance": "random"}, lambda W: Units(W, choose=at_random)),
    "noisy SGD": (
        "rs",
        {"sparsity": 0.5, "mechanism": "noise-only"},
        lambda W: RandomMask(W, clips=False),
    ),
    "ranked": ("rs", {"sparsity": 0.5, "ranking": "gradients"}, Ranked),
    "two masks an epoch": (
        "rs",
        {"sparsity": 0.5, "redraw": "2"},
        lambda W: RandomMask(W, masks=2),
    ),
    "SNF": ("sparse-dpsgd", {"sparsity": 0.5, "convolutions_alone": True}, Convolutions),
    "RGP's code": (
        "rgp",
        RGP
        | {
            "history": "normalized",
            "classifier_clip_weight": 0.01,
            "classifier_learning_rate": 0.01 * RATE,
        },
        Authors,
    ),
    "RGP's left factor": ("rgp", {"rank": 2, "warmup": ROUNDS, "factors": "left"}, Left),
    "RS on GEP": ("gep", {"rank": 2, "probes": 8, "sparsity": 0.5}, Embedded),
}


def rounds(case: str, reference: Callable[[Weights], Reference]) -> Iterator[tuple[Tensor, Tensor]]:
    """What the package sends and what the reference says, and then the weights after it, round
    after round.
    """
    name, settings, _ = CASES[case]
    method = recipe(name, **(NOISE | SERVER | settings))
    public = PublicState.start(
        net(), method, SCHEDULE, seed=SEED, classifier="classifier", source=PROBES
    )
    state = ServerState(
        public, divisor=DIVISOR, pruning_inputs=torch.zeros(1, 9, dtype=torch.float64)
    )
    inputs, targets = data()
    expected = reference({n: p.detach().clone() for n, p in state.model.named_parameters()})
    for round in range(1, ROUNDS + 1):
        frame = expected.frame = state.frame()
        got = client_step(
            copy.deepcopy(state.model),
            lambda rows: (inputs[rows], targets[rows]),
            losses,
            frame=frame,
            mechanism=method.mechanism,
            local=LocalTraining(sample_rate=SCHEDULE.sample_rate),
            num_examples=EXAMPLES,
            sampler=reproducible_stream(round, "sampler"),
            noise=reproducible_stream(round, "noise"),
            charge=lambda: None,
        )
        joined = reproducible_stream(round, "sampler").bernoulli(EXAMPLES, SCHEDULE.sample_rate)
        gradients = []
        for i in joined.nonzero().flatten().tolist():
            loss = losses(state.model(inputs[i : i + 1]), targets[i : i + 1]).sum()
            names, parameters = zip(*state.model.named_parameters(), strict=True)
            found = torch.autograd.grad(loss, parameters)
            gradients.append(dict(zip(names, found, strict=True)))
        yield got, expected.payload(gradients, method.mechanism.noise_std)
        state.finish_round(frame, [got], noise_std=method.mechanism.noise_std)
        expected.step()
        flat = torch.cat([W.flatten() for W in expected.weights.values()])
        yield state.weights, flat


def compare(case: str, reference: Callable[[Weights], Reference]) -> None:
    for got, wanted in rounds(case, reference):
        torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_payloads_and_weights_are_those_of_the_paper(case):
    compare(case, CASES[case][2])


@pytest.mark.parametrize(
    ("case", "planted"),
    [
        ("units by carriers", lambda W: Units(W, choose=by_weights)),
        ("random units", lambda W: Units(W, choose=by_carriers)),
        ("noisy SGD", RandomMask),
        ("ranked", RandomMask),
        ("two masks an epoch", RandomMask),
        ("SNF", lambda W: Convolutions(W, share=0.3)),
        ("RGP's code", lambda W: Authors(W, scale=0.1)),
        ("RGP's code", LowRank),
        ("RGP's left factor", LowRank),
        ("RS on GEP", lambda W: Embedded(W, residual=0.5)),
    ],
)
def test_another_reference_is_noticed(case, planted):
    """Controls: the comparison fails where the reference is that of another method."""
    with pytest.raises(AssertionError):
        compare(case, planted)
