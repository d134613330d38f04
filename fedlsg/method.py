"""The front door: a method is four choices; a client takes private steps, the server takes one.

    method = Method(carrier, mask, mechanism, after)
    frame  = make_frame(method, weights, ...)                  public: which coordinates, which of them kept
    values = client_step(model, batch, loss_fn, frame=...)     per-example gradients -> mask -> clip -> sum -> noise
    total  = aggregate([values of client 0, of client 1, ...])
    server_step(model, optimizer, scheduler, total, ...)       divide by a constant, Eq. 3, optimizer

Symbols: q Poisson rate, K local steps, N_k examples of client k; the rest as in lowrank.py.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedlsg.adapters import masked_factors
from fedlsg.after import After
from fedlsg.carriers import Carrier, coordinates
from fedlsg.frame import Block, Frame, make_blocks
from fedlsg.groups import group_of
from fedlsg.masks import Mask, Moment, Public, frozen_count, masked, split_kept
from fedlsg.persample import Batch as Inputs
from fedlsg.persample import LossFunction, per_example_gradients, trainable
from fedlsg.powersgd import norm_of_factors
from fedlsg.privatize import Mechanism, add_noise, clipped_sum
from fedlsg.pruning import Prune
from fedlsg.randomness import SecretStream
from fedlsg.sampling import check_sample_rate, microbatches, poisson_batch

Positions = Int[Tensor, " batch"]
Batch = Callable[[Positions], tuple[Inputs, Tensor]]
"""Positions in the client's own data -> (inputs, targets)."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A private federated training method: where gradients live, what is kept, what protects it, what follows."""

    name: str
    carrier: Carrier = field(default_factory=Carrier)
    mask: Mask = field(default_factory=Mask)
    mechanism: Mechanism = field(default_factory=Mechanism)
    after: After = field(default_factory=After)
    prune: Prune = field(default_factory=Prune)

    def __post_init__(self) -> None:
        if self.mask.kind == "units" and not (self.carrier.splits or self.carrier.kind == "lora"):
            raise ValueError("a mask of units freezes rows of dL and columns of dR: it needs low-rank carriers")
        if self.carrier.kind != "dense" and (self.mask.kind in ("magnitude", "drop") or self.prune.active):
            raise ValueError("masks of single weights, and pruning, need dense gradients: choose carrier 'dense'")
        if self.prune.active and self.mask.kind not in ("all", "drop"):
            raise ValueError(f"pruning does not combine with a mask of kind {self.mask.kind!r}: drop gradients instead")
        if self.mask.ranking == "gradients" and not (self.mechanism.adds_noise and self.carrier.kind == "dense"):
            raise ValueError(
                "ranking='gradients' needs dense gradients, whose coordinates stay the same from round to round, and "
                "noise, without which a coordinate that is frozen once would never come back"
            )


def initial_needed(method: Method, names: Mapping[str, Tensor], carried: Sequence[str]) -> tuple[str, ...]:
    """Names of the trainable parameters whose W_0 frames are made from, of all parameters by name.

    Carried weights, and every weight tensor where a mask of magnitudes keeps that of the start, or weights are pruned.
    """
    tensors = method.prune.active or (method.mask.kind == "magnitude" and not method.mask.refresh)
    return tuple(name for name, W in names.items() if name in carried or (tensors and W.ndim >= 2))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The public schedule, equal for all clients: rounds, local steps K of a round, Poisson rate q."""

    rounds: int
    local_steps: int = 1
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.local_steps < 1:
            raise ValueError(f"expected rounds={self.rounds} >= 1 and local_steps={self.local_steps} >= 1")
        check_sample_rate(self.sample_rate)

    def epoch(self, round: int) -> int:
        """Epoch of ``round`` (from 1): floor(local steps so far * q)."""
        return math.floor((round - 1) * self.local_steps * self.sample_rate + 1e-9)

    @property
    def epochs(self) -> int:
        """Number of epochs that the run touches."""
        return self.epoch(self.rounds) + 1

    def moment(self, round: int) -> Moment:
        """``round`` among the rounds, and its epoch among the epochs."""
        return Moment(round=round, rounds=self.rounds, epoch=self.epoch(round), epochs=self.epochs)


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """A client's local optimizer. Only optimizers that are linear in the gradient are offered: SGD with momentum.

    For those the accumulated carriers carry the local change of W exactly. ``learning_rate`` matters from the second
    local step on; ``expected_batch`` = q N with the declared N divides the local steps, never a realised size.
    A batch function gives ``multiplicity`` augmented copies of each example, one after the other, whose gradients are
    averaged before the clip (De et al. 2022): the unit stays the example.
    """

    steps: int = 1
    sample_rate: float = 1.0
    learning_rate: float = 0.1
    momentum: float = 0.0
    expected_batch: float = 1.0
    microbatch_size: int = 256
    multiplicity: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "microbatch_size", "multiplicity"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name}={getattr(self, name)} >= 1")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"expected 0 <= momentum={self.momentum} < 1")
        if not 0 < self.learning_rate < math.inf or not 0 < self.expected_batch < math.inf:
            raise ValueError(f"expected finite {self.learning_rate=} > 0 and {self.expected_batch=} > 0")
        check_sample_rate(self.sample_rate)

    def at_rate(self, sample_rate: float) -> "LocalTraining":
        """The same at one client's own Poisson rate."""
        return replace(self, sample_rate=sample_rate)

    def single(self) -> "LocalTraining":
        """One step of it, without momentum."""
        return replace(self, steps=1, momentum=0.0)


def make_frame(
    method: Method,
    weights: Mapping[str, Tensor],
    initial: Mapping[str, Tensor],
    *,
    carried: tuple[str, ...],
    round: int,
    updates: int,
    schedule: Schedule,
    seed: int,
    classifier: str = "",
    kept: Positions | None = None,
) -> Frame:
    """The public frame of ``round`` (from 1) after ``updates`` server updates, the same on server and clients.

    ``weights``: trainable parameters W_t in model order; ``initial``: W_0; ``carried``: names from
    ``carriers.carried_parameters``; ``seed``: the public seed; ``classifier``: the output layer's path; ``kept``: the
    kept positions where they are no function of the rest (ranking.py).
    """
    where = coordinates(
        weights, initial, carrier=method.carrier, carried=carried, round=round, updates=updates, seed=seed
    )
    sent = None
    if method.carrier.kind == "factors":  # the step is dense; what travels is made of its noised result
        sent = Frame(coordinates=where, blocks=make_blocks(where))
        where = tuple(replace(c, L=None, R=None) for c in where)
    public = Public(
        weights=weights,
        initial=initial,
        coordinates=where,
        moment=schedule.moment(round),
        seed=seed,
        pruned=method.prune.active,
    )
    blocks = make_blocks(where)
    if kept is None:
        blocks = masked(blocks, method.mask, public)
    else:
        blocks = split_kept(blocks, kept.to(next(iter(weights.values())).device))
    if method.carrier.kind == "lora" and method.mask.kind == "units":
        blocks = masked_factors(blocks, weights, initial, method.mask, method.carrier)
    return Frame(coordinates=where, blocks=weighted(blocks, weights, method.mechanism, classifier), sent=sent)


def weighted(
    blocks: Sequence[Block], weights: Mapping[str, Tensor], mechanism: Mechanism, classifier: str
) -> tuple[Block, ...]:
    """The blocks with the weights that their groups have in the clip."""
    groups = {name: group_of(name, tuple(W.shape), classifier) for name, W in weights.items()}
    return tuple(replace(block, weight=mechanism.weight_of(groups[block.parameter])) for block in blocks)


def client_step(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFunction,
    *,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    num_examples: int,
    sampler: SecretStream,
    noise: SecretStream,
    charge: Callable[[], None],
    order: Callable[[Positions], Positions] = lambda positions: positions,
    scale: Sequence[Float[Tensor, " kept"]] | None = None,
) -> Float[Tensor, " kept"]:
    """K local steps in one frame; the accumulated noised sum of clipped per-example gradients, kept coordinates only.

    Each step has its own Poisson batch (000 Alg. 1 line 13). ``charge`` is called once, before the first noise is
    drawn: it writes the ledger for all K steps and raises to forbid the release. The model comes back unchanged.
    ``order`` may sort a batch before it is cut into microbatches (by length, so that little is padded). ``scale``
    multiplies each block's gradients before the clip: by the weights it makes saliencies of them (snip.py).
    With momentum mu the result is sum_k v_k, v_k = mu v_(k-1) + s_k, so -lr Eq3(result) is the local change of W.
    Differs from the paper: one joint clip over all blocks and dense parameters (see privatize.py).
    """
    start = {name: p.detach().clone() for name, p in trainable(model).items()} if local.steps > 1 else {}
    velocity = accumulated = torch.zeros(0)
    try:
        for step in range(local.steps):
            total = _clipped_batch_sum(
                model, batch, loss_fn, frame, mechanism, local, num_examples, sampler, order, scale
            )
            if step == 0:
                charge()
                velocity, accumulated = torch.zeros_like(total), torch.zeros_like(total)
            velocity = local.momentum * velocity + add_noise(total, mechanism, noise)
            accumulated = accumulated + velocity
            if step + 1 < local.steps:
                _move(model, frame, velocity, -local.learning_rate / local.expected_batch)
    finally:
        with torch.no_grad():
            for name, value in start.items():
                trainable(model)[name].copy_(value)
    return accumulated


def _clipped_batch_sum(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFunction,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    num_examples: int,
    sampler: SecretStream,
    order: Callable[[Positions], Positions],
    scale: Sequence[Float[Tensor, " kept"]] | None,
) -> Float[Tensor, " kept"]:
    total: Tensor | None = None
    size = max(1, local.microbatch_size // local.multiplicity)
    for micro in microbatches(order(poisson_batch(num_examples, local.sample_rate, sampler)), size):
        inputs, targets = batch(micro)
        gradients = per_example_gradients(model, loss_fn, inputs, targets, frame)
        units = per_unit(gradients, frame, local.multiplicity)
        if scale is not None:
            units = [g * factor for g, factor in zip(units, scale, strict=True)]
        part = clipped_sum(units, mechanism)
        total = part if total is None else total + part
    assert total is not None  # microbatches() yields at least one run, an empty one for an empty batch
    return total


def per_unit(
    gradients: Sequence[Float[Tensor, "copies kept"]], frame: Frame, multiplicity: int
) -> list[Float[Tensor, "batch kept"]]:
    """What is clipped for one example: the mean over its copies, times the block's weight in the clip."""
    mean = [g if multiplicity == 1 else g.unflatten(0, (-1, multiplicity)).mean(1) for g in gradients]
    return [g if b.weight == 1 else g * b.weight for g, b in zip(mean, frame.blocks, strict=True)]


def _move(model: nn.Module, frame: Frame, values: Tensor, scale: float) -> None:
    with torch.no_grad():
        for name, gradient in frame.gradients(values).items():
            trainable(model)[name].add_(gradient, alpha=scale)


def norm_bound(mechanism: Mechanism, frame: Frame, *, num_examples: int, local: LocalTraining) -> float:
    """An L2 norm that an honest payload exceeds with negligible probability: N sensitivities a step, and the noise."""
    if not mechanism.clips:
        return math.inf
    signal = num_examples * mechanism.sensitivity(len(frame.blocks))
    tail = mechanism.noise_std * (math.sqrt(frame.kept) + 10)
    return 1.01 * (signal + tail) * local.steps / (1 - local.momentum) + norm_of_factors(frame)


def aggregate(updates: Sequence[Float[Tensor, " kept"]]) -> Float[Tensor, " kept"]:
    """Sum of the clients' values, in the order given (client order), in float64.

    Raises ValueError for no update, or updates of different lengths.
    """
    lengths = {len(update) for update in updates}
    if len(lengths) != 1:
        raise ValueError(f"expected updates of one length, got {sorted(lengths)}")
    total = torch.zeros(len(updates[0]), dtype=torch.float64)
    for update in updates:
        total += update.double().cpu()
    return total


def sparsified(gradient: Tensor, W: Tensor, sparsity: float) -> Tensor:
    """The gradient of a weight without its floor(p size) entries where abs(W) is smallest (000 sec. 4.4, "direct")."""
    frozen = frozen_count(W.numel(), sparsity)
    if W.ndim < 2 or not frozen:
        return gradient
    smallest = torch.argsort(W.detach().abs().flatten(), stable=True)[:frozen]
    return gradient.flatten().index_fill(0, smallest, 0.0).reshape(gradient.shape)


def server_step(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    total: Float[Tensor, " kept"],
    *,
    frame: Frame,
    divisor: float,
    after: After,
) -> None:
    """One server update: divide by a configured constant, rebuild dW (000 Eq. 3), step the optimizer.

    ``divisor`` is public and fixed before the run (clients a round times q times the declared mean N_k): it must not
    depend on who answered or on a batch. Raises ValueError unless it is positive.
    """
    if not 0 < divisor < math.inf:
        raise ValueError(f"expected 0 < {divisor=} < inf")
    parameters = trainable(model)
    example = next(iter(parameters.values()))
    values = (total / divisor).to(dtype=example.dtype, device=example.device)
    for name, gradient in frame.gradients(values, averaged=after.estimator == "averaged").items():
        parameters[name].grad = sparsified(gradient, parameters[name], after.sparsify_update)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
