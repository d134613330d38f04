"""Method: a training method as data, with the carrier, the mask, the mechanism and the server step.

    method = Method(carrier, mask, mechanism, server)
    frame  = PublicState.start(model, method, ...).frame(...)
    values = client_step(model, batch, loss_fn, frame=...)
    total  = aggregate([values of client 0, of client 1, ...])
    server_step(model, optimizer, scheduler, total, ...)

    frame        public: which coordinates there are, and which of them are kept
    client_step  per-example gradients -> mask -> clip -> sum -> noise
    server_step  divide by a constant, Eq. 3, optimizer

Symbols: q Poisson rate, K local steps, N_k examples of client k; the rest as in ``fedlsg.lowrank``.

Error feedback, of methods without privacy (Stich et al. 2018; Karimireddy et al. 2019, Algorithm
2): a client adds the error e_t of earlier payloads to its sum g_t of a round, p_t = g_t + e_t with
e_1 = 0. It sends C(p_t), and keeps e_(t+1) = p_t - D(C(p_t)), where D is the server's decoding.
That memory has no noise, and no clip bounds the effect of an example on the sum of payloads. So it
is refused under any mechanism but none, and never leaves the client.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.carriers import Carrier, Dense, carried_sizes
from fedlsg.carriers.personal import personal_names
from fedlsg.carriers.probe import Basis
from fedlsg.config import Setting, check_declared
from fedlsg.frame import Block, Frame, group_of, make_blocks
from fedlsg.frame.forms import CORE
from fedlsg.frame.public import Public, RoundTime
from fedlsg.masks import Mask, Prune, smallest
from fedlsg.masks.mask import apply_mask, split_kept
from fedlsg.privacy import Mechanism, check_sample_rate
from fedlsg.training import (
    Batch,
    LocalTraining,
    Positions,
    ServerOptimizer,
    aggregate,
    client_step,
    norm_bound,
    server_step,
)
from fedlsg.training.local_training import Count

__all__ = [
    "Batch",
    "Compression",
    "LocalTraining",
    "Method",
    "Positions",
    "Schedule",
    "aggregate",
    "client_step",
    "initial_needed",
    "make_frame",
    "norm_bound",
    "server_step",
]


TopkRate = Annotated[
    float,
    Setting(
        "Share of the coordinates that a client sends.",
        "share",
        above=0,
        at_most=1,
        why="the share of the values that is sent",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Compression:
    """The part of its values that a client does not send.

    topk_rate: share of the coordinates that it sends, those of largest magnitude; 1 sends all.
    error_feedback: whether the error by this choice, by factors or by the codec is added to the
        next values.
    """

    topk_rate: TopkRate = 1.0
    error_feedback: bool = False

    def __post_init__(self) -> None:
        check_declared(self)
        if self.chooses and not self.error_feedback:
            raise ValueError(
                f"topk_rate={self.topk_rate} without error feedback never sends what is small"
            )

    @property
    def chooses(self) -> bool:
        """Whether each client chooses the positions that it sends, which the server cannot
        derive.
        """
        return self.topk_rate < 1

    def most(self, size: int) -> int | None:
        """k: the most positions that a client chooses of ``size``; None if it chooses none."""
        return max(1, math.floor(self.topk_rate * size + 1e-9)) if self.chooses else None


def largest(values: Float[Tensor, " size"], most: int) -> Int[Tensor, " k"]:
    """Positions of the ``most`` values of largest magnitude, ascending, without those that are 0.

    Of equal magnitudes the one of higher position is sent first.
    """
    magnitudes = values.abs()
    kept = magnitudes > 0
    if most < len(values):
        kept &= ~smallest(magnitudes, len(values) - most)
    return kept.nonzero().squeeze(1)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A federated training method as data: recipes make it, and server and clients read it.

    name: for messages and reports.
    carrier: the coordinates of a gradient.
    mask: which of them are trained and sent.
    mechanism: clip and noise.
    server: the server's step with the clients' sum.
    prune: pruning before training.
    compression: the part of its values that a client does not send.
    personal: parameters that stay with each client, "classifier" or the start of their names; ""
        for none.
    Guarantee: a method that can be made runs, and its ledger entries are true. All of it is public.
    Raises ValueError for choices that do not combine; the message names both.
    """

    name: str
    carrier: Carrier = field(default_factory=Dense)
    mask: Mask = field(default_factory=Mask)
    mechanism: Mechanism = field(default_factory=Mechanism)
    server: ServerOptimizer = field(default_factory=ServerOptimizer)
    prune: Prune = field(default_factory=Prune)
    compression: Compression = field(default_factory=Compression)
    personal: str = ""

    def __post_init__(self) -> None:
        if self.mask.units and self.carrier.refuses_units:
            raise ValueError(self.carrier.refuses_units)
        if not self.carrier.dense and (self.mask.entries or self.prune.active):
            raise ValueError(
                "masks of single weights, and pruning, need dense gradients: choose carrier 'dense'"
            )
        if self.carrier.form.embeds and (
            self.mask.kind not in ("all", "uniform") or self.mechanism.clip != "joint"
        ):
            raise ValueError(
                f"embeddings are kept whole or at random, and clipped within a joint clip: method "
                f"{self.name!r} needs a mask of kind 'all' or 'uniform' and clip='joint', got "
                f"{self.mask.kind!r} and {self.mechanism.clip!r}"
            )
        if self.mask.predicted and not self.carrier.predicts:
            raise ValueError(
                "importance by predicted energy needs carriers that predict it: choose carriers of "
                "kind 'probe'"
            )
        if self.mask.kind == "energy" and self.carrier.form is not CORE:
            raise ValueError(
                "a mask of energy freezes entries of S: it needs form='core'; choose "
                "importance='energy' for units"
            )
        if self.prune.active and not self.mask.prunes:
            raise ValueError(
                f"pruning does not combine with a mask of kind {self.mask.kind!r}: drop gradients "
                "instead"
            )
        if self.server.estimator == "averaged" and not self.carrier.splits:
            raise ValueError(
                "estimator='averaged' averages the two copies that low-rank carriers make: it "
                "needs them"
            )
        if not self.carrier.adds_up and self.mechanism.in_sums_alone:
            raise ValueError(
                "trust='aggregate' and 'secure' are private in the sum of the values alone, and "
                f"factors do not add up: the server needs each client's own; method {self.name!r} "
                "needs trust='client'"
            )
        if self.mask.ranking == "gradients" and not (
            self.mechanism.adds_noise and self.carrier.dense
        ):
            raise ValueError(
                "ranking='gradients' needs dense gradients, whose coordinates stay the same from "
                "round to round, and noise, without which a coordinate that is frozen once would "
                "never come back"
            )
        if self.compression.error_feedback:
            self.check_memory()
        if self.compression.chooses and not self.carrier.adds_up:
            raise ValueError(
                "topk_rate selects values of the update, which factors are not: use one of the two"
            )
        if self.personal:
            self._check_personal()

    def _check_personal(self) -> None:
        """Raise ValueError for choices that need all values of a step at the server, or the same
        model in every client.
        """
        by_sums = self.mask.ranking == "gradients"
        why = {
            "sums of the clients' values that decide what is kept (ranking=gradients)": by_sums,
            "pruning": self.prune.active,
            "error feedback": self.compression.error_feedback,
            f"carriers of kind {self.carrier.kind!r}": not self.carrier.adds_up,
            "trust='aggregate' or 'secure', whose noise is enough in the sum of all clients only": (
                self.mechanism.in_sums_alone
            ),
        }
        reasons = [words for words, is_so in why.items() if is_so]
        if reasons:
            raise ValueError(
                f"personal={self.personal!r} does not combine with {' and '.join(reasons)}: leave "
                "one out"
            )

    def check_memory(self) -> None:
        """Raise ValueError if error feedback is not possible.

        It needs mechanism none, and coordinates that are the same in all rounds.
        """
        if not self.mechanism.of_kind.plain:
            raise ValueError(
                "error feedback keeps gradients of the client without noise: what one payload "
                "leaves out comes with later ones, which neither clip nor noise of mechanism "
                f"{self.mechanism.kind!r} covers; {self.name!r} needs mechanism 'none'; private "
                "methods of few bytes: dpsgd with a codec of few bits, and dp-powersgd"
            )
        moving = [f"carrier {self.carrier.kind!r}"] if self.carrier.parts != ("dense",) else []
        moving += [f"mask {self.mask.kind!r}"] if not self.mask.whole else []
        moving += [f"prune={self.prune.kind!r}"] if self.prune.active else []
        if moving:
            raise ValueError(
                f"error feedback adds up values of several rounds, and with {' and '.join(moving)} "
                f"of {self.name!r} a coordinate is not the same in the next round: choose a dense "
                "method such as sgd"
            )

    @property
    def own_functions(self) -> tuple[Callable[..., object], ...]:
        """The functions of the user that make frames."""
        return self.carrier.functions + (() if self.mask.choose is None else (self.mask.choose,))


def initial_needed(
    method: Method, names: Mapping[str, Tensor], carried: Sequence[str]
) -> tuple[str, ...]:
    """Names of the trainable parameters whose W_0 is needed to make frames.

    They are the carried weights; every weight tensor if weights are pruned, or the mask keeps the
    largest magnitudes of W_0; and all if a function of the user makes frames. ``names``: all
    parameters by name.
    """
    if method.own_functions:
        return tuple(names)
    tensors = method.prune.active or method.mask.from_start
    return tuple(name for name, W in names.items() if name in carried or (tensors and W.ndim >= 2))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The public schedule, equal for all clients.

    rounds: their number.
    local_steps: K, of a round.
    sample_rate: q.
    """

    rounds: Count
    local_steps: Count = 1
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        check_declared(self)
        check_sample_rate(self.sample_rate)

    def epoch(self, round: int) -> int:
        """Epoch of ``round`` (from 1): floor(local steps before it * q); 1e-9 is for rounding."""
        return math.floor((round - 1) * self.local_steps * self.sample_rate + 1e-9)

    @property
    def epochs(self) -> int:
        """Number of epochs that the run touches."""
        return self.epoch(self.rounds) + 1

    def time(self, round: int) -> RoundTime:
        """``round`` among the rounds, and its epoch among the epochs."""
        return RoundTime(
            round=round,
            rounds=self.rounds,
            epoch=self.epoch(round),
            epochs=self.epochs,
            per_round=self.local_steps * self.sample_rate,
        )


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
    model: Callable[[], nn.Module] | None = None,
    basis: Basis | None = None,
) -> Frame:
    """The public frame of ``round`` (from 1) after ``updates`` server updates, the same on server
    and clients.

    weights: trainable parameters W_t in model order.
    initial: W_0.
    carried: names from ``carriers.carried_parameters``.
    seed: the public seed.
    classifier: the head's path.
    kept: the kept positions, if the server chose them (``Memory.kept``).
    model: makes the model as it was built, which the user's functions may probe.
    basis: the carriers of the last refresh of a probe.
    """
    public = Public(
        weights=weights,
        initial=initial,
        carried=carried_sizes(method.carrier, weights, carried),
        updates=updates,
        time=schedule.time(round),
        seed=seed,
        pruned=method.prune.active,
        make_model=model,
    )
    if basis is not None:
        public = replace(public, pairs=basis.carriers, energies=basis.energies)
    where = method.carrier.coordinates(public)
    sent = None
    of_step = method.carrier.step_coordinates(where)
    if of_step is not None:
        sent = Frame(coordinates=where, blocks=make_blocks(where))
        where = of_step
    if kept is None:
        blocks = kept_blocks(method, replace(public, coordinates=where))
    else:
        blocks = split_kept(make_blocks(where), kept)
    blocks = weigh_blocks(blocks, weights, method.mechanism, classifier)
    blocks, part_norm = method.carrier.weigh(blocks, method.mechanism)
    personal = personal_names(weights, method.personal, classifier) if method.personal else ()
    return Frame(
        coordinates=where,
        blocks=blocks,
        sent=sent,
        personal=personal,
        part_norm=part_norm,
        one_shape=method.carrier.needs_one_shape(where),
    )


def kept_blocks(method: Method, public: Public) -> tuple[Block, ...]:
    """The blocks of a frame with what the mask keeps of each."""
    blocks = apply_mask(make_blocks(public.coordinates), method.mask, public)
    return method.carrier.mask(blocks, method.mask, public)


def weigh_blocks(
    blocks: Sequence[Block], weights: Mapping[str, Tensor], mechanism: Mechanism, classifier: str
) -> tuple[Block, ...]:
    """The blocks with the weights that their groups have in the clip."""
    groups = {name: group_of(name, tuple(W.shape), classifier) for name, W in weights.items()}
    weights_of = [mechanism.weight_of(groups[block.parameter]) for block in blocks]
    return tuple(
        b if b.weight == w else replace(b, weight=w)
        for b, w in zip(blocks, weights_of, strict=True)
    )
