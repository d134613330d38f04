"""What every recipe promises, as functions that return what is wrong: nothing, where all is well.

A case is a recipe with settings. Its frame is built as server and client build it, after two server
updates, when histories, ramps and late masks are all in effect. The checks look the parts of a step
up where the package does, so that a test can plant a mistake there.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import RecordDict
from scipy.stats import chi2
from torch import Tensor, nn

import fedlsg.method
from fedlsg.carriers import prepare_model
from fedlsg.carriers.powersgd import decode, encode
from fedlsg.carriers.probe import Basis, ProbeSource, unflatten
from fedlsg.config.isolation import CHECKED
from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, Method, Schedule, norm_bound
from fedlsg.payload import Expected, IndexMode, pack, unpack
from fedlsg.randomness import reproducible_stream
from fedlsg.state.public_state import PublicState
from fedlsg.state.round_plan import PRUNING_ROUND, RoundPlan, plan_round
from fedlsg.state.server_state import ServerState, load_weights
from fedlsg.strategies import default_mechanism, own_settings, recipe
from fedlsg.strategies.protocol.downlink import basis_record, read_basis
from fedlsg.strategies.protocol.wire import Announcement, announced_to, kept_record, read_kept
from tests.noise import no_noise

WIDTH, FEATURES, EXAMPLES, SEED = 48, 20, 7, 3
SCHEDULE, UPDATES = Schedule(rounds=3, sample_rate=0.5), 2
NOISE = {"clip_norm": 0.3, "noise_multiplier": 1.5}
SMALL = {"rank": 2, "sparsity": 0.4, "probes": 16}
"""Settings of a case unless it says otherwise, as far as its recipe has them."""

EMPTY = LocalTraining(sample_rate=1e-12)
LEAST_DRAWS, FALSE_ALARM, TIGHT = 20_000, 1e-7, 0.8
FEW_DRAWS = LEAST_DRAWS // 40
"""Of the short contract: they find halved noise."""
ROUNDING = 1e-5
"""Of products of unit vectors, some of which are made in float32."""
SCALES = (1e-8, 0.01, 0.05, 1.0, 1e4, -1e4, 1e150, 1e200, math.inf, math.nan)
"""Factors on the loss of one example: from all but silent to squares beyond float64, and what is no
number.
"""


def mlp() -> nn.Module:
    net = nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()
    )
    net.add_module("classifier", nn.Linear(WIDTH, WIDTH))
    return net


def cnn() -> nn.Module:
    net = nn.Sequential(
        nn.Unflatten(1, (1, 5, 4)),
        nn.Conv2d(1, WIDTH, 3, padding=1),
        nn.GroupNorm(4, WIDTH),
        nn.Tanh(),
        nn.Conv2d(WIDTH, WIDTH, 3),
        nn.AvgPool2d((3, 2)),
        nn.Flatten(),
    )
    net.add_module("classifier", nn.Linear(WIDTH, WIDTH))
    return net


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn}


@dataclass(frozen=True)
class Case:
    """A recipe with settings, how many augmented copies of an example its clients take, and whether
    the step is that of the pruning round before training."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    multiplicity: int = 1
    pruning: bool = False

    @property
    def method(self) -> Method:
        defaults = {key: value for key, value in SMALL.items() if key in own_settings(self.name)}
        noise = NOISE if default_mechanism(self.name) == "dp" else {}
        return recipe(self.name, **(defaults | noise | dict(self.settings)))


def weighted_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of the class in column 0, times the factor in column 1."""
    return (
        F.cross_entropy(outputs, targets[:, 0].nan_to_num().long(), reduction="none")
        * targets[:, 1]
    )


PROBES = ProbeSource(
    name="normal numbers",
    draw=lambda count, generator: torch.randn(
        count, FEATURES, generator=generator, dtype=torch.float64
    ),
    loss=lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
    num_classes=WIDTH,
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One step of a case on a model: the server's frame, and a client's own model and frame."""

    frame: Frame
    state: PublicState
    plan: RoundPlan

    model = property(lambda self: self.state.model)
    derived = property(lambda self: self.plan.frame)
    mechanism = property(lambda self: self.plan.mechanism)
    multiplicity = property(lambda self: self.plan.local.multiplicity)

    def step(self, data: "Data", **changes: Any) -> Tensor:
        """One local step over all examples, on noise that is zero unless a stream is given: the
        clipped sum.
        """
        known = {
            "local": self.plan.local,
            "num_examples": len(data.inputs),
            "sampler": reproducible_stream(0),
            "noise": reproducible_stream(1),
            "charge": lambda: None,
            "frame": self.derived,
            "mechanism": self.mechanism,
            "scale": self.plan.scale(self.state.parameters),
        }
        with nullcontext() if "noise" in changes else no_noise():
            return fedlsg.method.client_step(
                self.model, data.batch, weighted_loss, **(known | changes)
            )


@dataclass(frozen=True)
class Data:
    """Copies (N, M, features) of every example, and its targets (N, 2): class and factor on the
    loss.
    """

    inputs: Tensor
    targets: Tensor

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        copies = self.inputs[positions]
        return copies.flatten(0, 1), self.targets[positions].repeat_interleave(
            copies.shape[1], dim=0
        )

    def without(self, i: int) -> "Data":
        """The neighbouring data set that lacks example i."""
        others = torch.arange(len(self.inputs)) != i
        return replace(self, inputs=self.inputs[others], targets=self.targets[others])


def subject(
    case: Case, make: Callable[[], nn.Module] = mlp, dtype: torch.dtype = torch.float64
) -> Subject:
    """Server and client of a case, each with a model of its own, before the pruning round or before
    round 3.
    """
    method, (public, own) = case.method, (started(case.method, make, dtype) for _ in range(2))
    server, client = (
        PublicState.start(
            model, method, SCHEDULE, seed=SEED, classifier="classifier", source=PROBES
        )
        for model in (public, own)
    )
    state = ServerState(server, divisor=4.0, pruning_inputs=torch.zeros(1, FEATURES, dtype=dtype))
    local = LocalTraining(microbatch_size=3 * case.multiplicity, multiplicity=case.multiplicity)
    if state.awaits_pruning:
        frame = state.frame()
        if case.pruning:
            derived = derived_frame(client, PRUNING_ROUND, updates=0)
            return Subject(
                frame=frame, state=client, plan=plan_round(method, PRUNING_ROUND, derived, local)
            )
        state.prune(frame, [random_values(frame, UPDATES)], num_examples=EXAMPLES)
    for update in range(UPDATES):
        frame = state.frame()
        state.finish_round(frame, [random_values(frame, update)], noise_std=1.0)
    load_weights(own, state.weights)
    derived = derived_frame(
        client,
        UPDATES + 1,
        updates=UPDATES,
        kept=announced_positions(state),
        basis=announced_basis(state, client),
    )
    return Subject(
        frame=state.frame(), state=client, plan=plan_round(method, UPDATES + 1, derived, local)
    )


def derived_frame(client: PublicState, round: int, **known: Any) -> Frame:
    """The frame as a client derives it."""
    return client.frame(round, **known)


def announced_basis(state: ServerState, client: PublicState) -> Basis | None:
    """The carriers of a probe as they reach a client that was not there at the refresh."""
    basis = state.basis_of(state.next_round)
    if basis is None:
        return None
    sent = read_basis(RecordDict({"basis": basis_record(basis)}))
    return unflatten(
        sent, client.method.carrier, client.parameters, client.carried, round=basis.round
    )


def announced_positions(state: ServerState) -> Tensor | None:
    """Kept positions as they reach a client, of the masks that only the server can make."""
    if state.memory is None:
        return None
    announced = Announcement(
        round=UPDATES + 1,
        updates=UPDATES,
        frame_digest=state.frame().digest,
        sample_rate=0.5,
        noise_multiplier=1.0,
        expected_batch=1.0,
        run_dir="",
        isolation=CHECKED,
        features="",
    )
    return read_kept(
        announced_to({"kept": kept_record(state.frame())}, announced), len(state.weights)
    )


def random_values(frame: Frame, seed: int) -> Tensor:
    """Values that a client might have sent."""
    return torch.randn(
        frame.kept, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def started(method: Method, make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """The initial model, equal in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = make().to(dtype)
    return prepare_model(model, method.carrier, classifier="classifier", seed=SEED)


def data_set(seed: int, multiplicity: int = 1, dtype: torch.dtype = torch.float64) -> Data:
    """Random examples, of which the loss is scaled at random, the first by a lot; the last has no
    number as input.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(EXAMPLES, multiplicity, FEATURES, generator=generator, dtype=dtype)
    inputs[-1, -1, seed % FEATURES] = (math.nan, math.inf, 1e300)[seed % 3]
    scales = torch.tensor(SCALES, dtype=dtype)[
        torch.randint(len(SCALES), (EXAMPLES,), generator=generator)
    ]
    scales[0] = 1e4
    classes = torch.randint(WIDTH, (EXAMPLES,), generator=generator)
    return Data(inputs, torch.stack([classes.to(dtype), scales], dim=1))


def movement(s: Subject, data_sets: range) -> float:
    """The most that one example moves the clipped sum, over random data sets; inf where it is no
    number.
    """
    moved = [0.0]
    for seed in data_sets:
        data = data_set(seed, s.multiplicity)
        total = s.step(data)
        moved += [float((total - s.step(data.without(i))).norm()) for i in range(EXAMPLES)]
    return max(math.inf if math.isnan(m) else m for m in moved)


def sensitivity_defects(s: Subject, data_sets: range = range(3)) -> list[str]:
    """What is wrong with the claim that one example moves the sum by ``mechanism.sensitivity`` at
    most.

    Under a joint clip some example has to come close to it, or the data sets would have tested
    nothing.
    """
    claimed = s.mechanism.sensitivity(len(s.frame.blocks))
    effective = s.mechanism.effective_noise_multiplier
    found = []
    if not s.mechanism.private and effective(len(s.frame.blocks)) != 0:
        found.append("claims an epsilon without clip and noise")
    if not s.mechanism.clips:
        return found
    moved = movement(s, data_sets)
    if moved > claimed * (1 + 1e-9):
        found.append(f"one example moved the sum by {moved:.3g}, claimed is {claimed:.3g}")
    if effective(len(s.frame.blocks)) > s.mechanism.noise_std / moved * (1 + 1e-9):
        found.append("the ledger's noise multiplier exceeds noise over movement")
    if moved < claimed * (TIGHT if s.mechanism.clip == "joint" else TIGHT / 2):
        found.append(
            f"no example moved the sum by much more than {moved:.3g} of {claimed:.3g}: the check "
            "is empty"
        )
    return found


def noise_defects(s: Subject, least: int = LEAST_DRAWS) -> list[str]:
    """What is wrong with the noise of an empty batch, by its variance in every block and over all
    of them together.

    ``least`` draws a block, from a fiftieth to an eighth as many steps: blocks of under 8 values
    have fewer draws.
    """
    none, local = data_set(0, s.multiplicity), replace(EMPTY, multiplicity=s.multiplicity)
    smallest = min(block.kept for block in s.derived.blocks if block.kept)
    draws = (
        min(max(least // 50, math.ceil(least / smallest)), least // 8)
        if s.mechanism.adds_noise
        else 1
    )
    values = torch.stack(
        [s.step(none, noise=reproducible_stream(i), local=local) for i in range(draws)]
    )
    if not s.mechanism.adds_noise:
        return ["an empty batch does not give zeros"] if values.any() else []
    values = values / (s.mechanism.noise_multiplier * s.mechanism.clip_norm)
    found, pieces = [], values.split([block.kept for block in s.derived.blocks], dim=1)
    for i, (block, piece) in enumerate(zip(s.derived.blocks, pieces, strict=True)):
        if block.kept and not plausible(piece.square().sum(), piece.numel()):
            found.append(
                f"block {i} ({block.parameter}) has variance {float(piece.square().mean()):.3f}, "
                "not 1"
            )
    if not plausible((values.sum(1).square() / s.derived.kept).sum(), draws):
        found.append("the noise of different coordinates is not independent")
    return found


def plausible(squares: Tensor, count: int) -> bool:
    """Whether a sum of ``count`` squared standard normal numbers lies within the quantiles of
    chi-square.
    """
    low, high = chi2.ppf([FALSE_ALARM, 1 - FALSE_ALARM], count)
    return bool(low < float(squares) < high)


def lift_defects(s: Subject) -> list[str]:
    """What is wrong with where the server's gradients are zero, from a payload that is zero
    nowhere.
    """
    normal = torch.randn(
        s.derived.kept, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    lifted = s.frame.gradients(received(s, s.mechanism.clip_norm * normal / normal.norm()).double())
    return [
        f"{block.parameter} moves elsewhere than where the mask keeps it"
        for block in s.frame.blocks
        if block.part == "dense"
        and not torch.equal(
            lifted[block.parameter].flatten().nonzero().squeeze(1),
            block.keep.positions(block.shape),
        )
    ]


def carrier_defects(s: Subject) -> list[str]:
    """What is wrong with carriers whose form needs orthonormal columns of L and rows of R: Eq. 3
    holds for no others.
    """
    carried = [c for c in s.frame.coordinates if c.carried and c.form.orthonormal]
    return [
        f"{side} of {c.name} is not orthonormal: its products are off by {off:.2g}"
        for c in carried
        for side, X in (("L", c.L.mT), ("R", c.R))
        if not (off := float((X @ X.mT - torch.eye(len(X), dtype=X.dtype)).abs().max())) <= ROUNDING
    ]


def received(s: Subject, values: Tensor, index_mode: IndexMode = "derived") -> Tensor:
    """What the server makes of the client's payload, under the norm that it expects."""
    where, round, out = s.frame.wire, s.plan.round, s.derived
    payload = pack(
        encode(values, out),
        out.wire.indices,
        size=out.wire.size,
        round=round,
        digest=out.digest,
        index_mode=index_mode,
    )
    most = norm_bound(s.mechanism, s.frame, num_examples=EXAMPLES, local=LocalTraining())
    expected = Expected(
        round=round,
        codec="float32",
        index_mode=index_mode,
        size=where.size,
        indices=where.indices,
        digest=s.frame.digest,
        max_norm=most,
    )
    return decode(unpack(payload, expected), s.frame)
