"""A whole update of a model in a payload: projected on a round's frame, masked, packed, rebuilt.

Symbols: W_t the weights that a client received, W its weights after training, U = W - W_t.
    values   the frame's coordinates of U (``Frame.project``): dL = U R^T, dR = L^T U where carried,
             else U
    rebuilt  W_t plus Eq. 3 of the values (``Frame.gradients``)
Both sides make the frame from W_t, the round and the terms, which are public, and compare its
digest.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg import strategies
from fedlsg.accounting.checks import checked_delta, checked_epsilon
from fedlsg.carriers import (
    Dense,
    LowRank,
    RandomCarriers,
    carried_parameters,
    find_classifier,
    prepare_model,
)
from fedlsg.carriers.low_rank import LowRankChange
from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.method import Method, Schedule, initial_needed
from fedlsg.payload import Dither, Expected, find_codec, pack, unpack
from fedlsg.randomness import own_draws
from fedlsg.secure_sum.discrete import Release, SumTerms, plan_release
from fedlsg.simulations.client.node.node_config import absolute
from fedlsg.simulations.client.node.refusals import SettingsError, TermsError
from fedlsg.state import PublicState
from fedlsg.strategies.protocol.stages import MESSAGE as SUM_MESSAGE
from fedlsg.strategies.protocol.stages import read_stage
from fedlsg.strategies.protocol.wire import STAGE as SUM_TERMS
from fedlsg.strategies.protocol.wire import stage_of

KEY = "fedlsg.update"
"""The ConfigRecord of the terms in a message, and of the payload in its reply."""
PAYLOAD = "payload"
"""The entry of that record with the payload."""
UPLINK_EACH, DOWNLINK_EACH = "uplink_bytes_per_client", "downlink_bytes_per_client"
"""Metrics of a round: means over clients."""
OURS = (KEY, SUM_TERMS, SUM_MESSAGE)
"""The records of fedlsg in a message."""

MAX_NORM_DEVIATIONS = 10.0
"""How far above its mean the noise's norm may be, in standard deviations of one value: it has
about 1 / sqrt(2) of one itself.
"""

State = dict[str, Tensor]
"""A state_dict."""


@dataclass(frozen=True, kw_only=True)
class RoundTerms:
    """The terms that server and clients share in a round; all of them are public.

    method: a recipe's name.
    settings: of the recipe, as JSON.
    unit: "client": the client clips its whole update and adds noise; "example": private steps made
        the update, and nothing is added.
    round: its number, from 1.
    rounds: number of all rounds.
    seed: of carriers and masks.
    codec: of the values.
    digest: of the frame, in hex.
    trust: "client", each client adds all of the noise, or "secure", a share of it in a sum of
        ``min_survivors`` clients at least, of which ``colluders`` may read together.
    delta: of the plan of secure sums.
    """

    method: str
    settings: str
    unit: str
    round: int
    rounds: int
    seed: int
    codec: str
    digest: str = ""
    trust: str = "client"
    min_survivors: int = 0
    colluders: int = 0
    delta: float = 1e-5

    def record(self) -> ConfigRecord:
        """The terms as a record of a message."""
        return ConfigRecord(asdict(self))

    def sums(self, clients: int) -> SumTerms:
        """The secure sums of so many clients. Raises ValueError for numbers that do not fit."""
        return SumTerms(
            clients=clients,
            min_survivors=self.min_survivors,
            colluders=self.colluders,
            expected_examples=clients,  # one a client, as an update is clipped whole
            releases=self.rounds,
            delta=self.delta,
        )

    def recipe(self) -> Method:
        """The method. Raises ValueError for an unknown method or codec, or one that needs more than
        W_t for its frame.
        """
        find_codec(self.codec)
        method = strategies.recipe(self.method, **json.loads(self.settings))
        if not _needs_only_weights(method):
            raise ValueError(
                f"method {self.method!r} needs more than the weights of the round to make its "
                "frame, and whole updates have no more: choose dpsgd, rs, lsg, rgp-random or "
                "another method of low-rank, random or no carriers"
            )
        if method.mechanism.in_sums_alone:
            raise ValueError(
                "noise_share and colluders follow from trust, and are no settings of a method"
            )
        if self.trust != "secure":
            return method
        if not 1 <= self.colluders < self.min_survivors:
            raise ValueError(
                f"expected 1 <= colluders={self.colluders} < min_survivors={self.min_survivors}"
            )
        # min_survivors - colluders clients, who do not collude, then have all of the noise
        share = 1 / math.sqrt(self.min_survivors - self.colluders)
        mechanism = replace(method.mechanism, noise_share=share, colluders=self.colluders)
        return replace(method, mechanism=mechanism)


def _needs_only_weights(method: Method) -> bool:
    """Whether a method makes the frame of a round from its weights alone."""
    carrier = method.carrier
    return (
        isinstance(carrier, (Dense, LowRank, RandomCarriers))
        and not isinstance(carrier, LowRankChange)
        and carrier.residual  # else W is cut to rank r before the round
        and method.mask.ranking != "gradients"
        and not method.prune.active
        and not method.personal
    )


Trust = Literal["client", "secure"]
"""Whether a payload alone is private, or only the sum of all."""


def check_door(model: object, epsilon: float | None, delta: float, trust: str) -> None:
    """Raise ValueError for bad arguments of ``private_update`` or ``PrivateUpdates``."""
    if isinstance(model, nn.Module) or not callable(model):
        raise ValueError(
            f"model={type(model).__name__}: expected the class or function that builds it, such as "
            "Net"
        )
    if epsilon is not None:
        checked_epsilon(epsilon)
    checked_delta(delta)
    if trust not in ("client", "secure"):
        raise ValueError(f"expected {trust=} to be 'client' or 'secure'")


def check_whole(**numbers: tuple[object, int]) -> None:
    """Raise ValueError unless each is a whole number, or None; by name: the value, its least."""
    for name, (value, least) in numbers.items():
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"expected {name}={value!r} to be a whole number of {least} or more")


def folder_of(given: str | Path | None, name: str) -> Path | None:
    """An absolute folder, or None. Raises ValueError for a relative one.

    Flower starts an app in any working directory.
    """
    try:
        return None if given is None else absolute(str(given), name)
    except TermsError as error:
        raise ValueError(str(error).removeprefix("node config: ")) from None


def check_trust(terms: RoundTerms, least: Trust, colluders: int) -> None:
    """Raise SettingsError for terms that are weaker than a client's ``least``, ``colluders``."""
    if terms.unit != "client":
        raise SettingsError(
            "private_update protects a client, and PrivateUpdates of the server has "
            f"unit={terms.unit!r}: give 'client'"
        )
    if terms.trust == "secure" and least != "secure":
        raise SettingsError(
            "the server asks for shares of noise in a secure sum, and this client adds all of it: "
            "private_update(trust='secure') accepts them"
        )
    if terms.trust == "secure" and terms.colluders < colluders:
        raise SettingsError(
            f"the server's secure sums tolerate colluders={terms.colluders}, and this client asks "
            f"for {colluders}"
        )
    if terms.trust not in ("client", "secure"):
        raise SettingsError(
            f"the server asks for trust={terms.trust!r}, which no private update has"
        )


def for_app(message: Message) -> Message:
    """The message as the app knows it, without fedlsg's records."""
    message.content = RecordDict(
        {name: record for name, record in message.content.items() if name not in OURS}
    )
    return message


def clients_of(content: RecordDict) -> tuple[int, ...]:
    """The clients of a message's secure sum; none without one."""
    return () if stage_of(content) is None else read_stage(content).clients


def read_terms(content: RecordDict) -> RoundTerms:
    """The terms of a message. Raises SettingsError if it has none."""
    record = content.config_records.get(KEY)
    names = {f.name for f in fields(RoundTerms)}
    if record is None or set(record) != names:
        raise SettingsError(
            "the message has no terms of private updates: the server needs the strategy "
            "fedlsg.flower.PrivateUpdates, of the same version of fedlsg"
        )
    return RoundTerms(**dict(record))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Round:
    """One round.

    terms: of the round.
    method: of the terms.
    frame: of the round.
    before: the weights W_t.
    """

    terms: RoundTerms
    method: Method
    frame: Frame
    before: State

    @classmethod
    def of(cls, build: Callable[[], nn.Module], arrays: ArrayRecord, terms: RoundTerms) -> "Round":
        """The round of a model, from the function that builds it, and W_t.

        Raises ValueError for weights of another model.
        """
        method, before = terms.recipe(), arrays.to_torch_state_dict()
        with own_draws("cpu"):  # the app's own generators stay as they are
            model = build()
            prepare_model(model, method.carrier, seed=terms.seed)
        check_state(model, before)
        model.load_state_dict(before)
        parameters, carried = trainable(model), carried_parameters(model, method.carrier)
        # not by ``PublicState.start``, which refuses layers that mix examples: no fault here
        state = PublicState(
            model=model,
            method=method,
            schedule=Schedule(rounds=terms.rounds),
            seed=terms.seed,
            classifier=find_classifier(model),
            carried=carried,
            initial={
                name: parameters[name].detach()
                for name in initial_needed(method, parameters, carried)
            },
        )
        return cls(terms, method, state.frame(terms.round, updates=terms.round - 1), before)

    def release(self, clients: int) -> Release:
        """The release of a secure sum of so many clients."""
        return plan_release(
            self.terms.sums(clients),
            self.method.mechanism,
            values=self.frame.kept,
            blocks=len(self.frame.blocks),
        )

    def values(self, after: State) -> Float[Tensor, " kept"]:
        """The coordinates of an update. Raises ValueError for weights of another model."""
        names = [c.name for c in self.frame.coordinates]
        if wrong := [n for n in names if n not in after or after[n].shape != self.before[n].shape]:
            raise ValueError(
                f"the app's reply has no {wrong[0]} of the shape that it was sent: return "
                "model.state_dict()"
            )
        return self.frame.project(
            {name: after[name].float() - self.before[name].float() for name in names}
        )

    def pack(self, values: Float[Tensor, " kept"], node: int) -> bytes:
        """The payload of a node's values."""
        return pack(
            values,
            self.frame.indices,
            size=self.frame.size,
            round=self.terms.round,
            digest=self.frame.digest,
            codec=find_codec(self.terms.codec),
            blocks=self.frame.blocks,
            dither=self._dither(node),
        )

    def unpack(self, payload: bytes, node: int) -> Float[Tensor, " kept"]:
        """The values of a payload.

        Raises PayloadError for other bytes, and for a norm above S + s (sqrt(d) + 10): S is the
        sensitivity, s the standard deviation of the noise on each of d values, and the norm of the
        noise is near s sqrt(d).
        """
        mechanism, kept = self.method.mechanism, self.frame.kept
        max_norm = mechanism.sensitivity(len(self.frame.blocks)) + mechanism.noise_std * (
            math.sqrt(kept) + MAX_NORM_DEVIATIONS
        )
        return unpack(
            payload,
            Expected(
                round=self.terms.round,
                codec=find_codec(self.terms.codec),
                index_mode="derived",
                size=self.frame.size,
                indices=self.frame.indices,
                digest=self.frame.digest,
                blocks=self.frame.blocks,
                dither=self._dither(node),
                max_norm=max_norm,
            ),
        )

    def rebuilt(self, values: Float[Tensor, " kept"]) -> State:
        """W_t plus Eq. 3 of the values; tensors that are not trained stay as they are."""
        updates = self.frame.gradients(values)
        return {
            name: W + updates[name].to(W) if name in updates else W
            for name, W in self.before.items()
        }

    def _dither(self, node: int) -> Dither:
        return Dither(seed=self.terms.seed, client=node, noise_std=self.method.mechanism.noise_std)


def check_state(model: nn.Module, state: State) -> None:
    """Raise ValueError for weights of another model, or buffers with statistics of private data."""
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    shapes = {name: tuple(t.shape) for name, t in state.items()}
    if expected != shapes:
        different, shape = min(set(expected.items()) ^ set(shapes.items()))
        raise ValueError(
            f"the weights are not those of {type(model).__name__}: {different} {list(shape)} is "
            "only in one; give the function that builds the app's model, and its state_dict() as "
            "initial_arrays"
        )
    for name, module in model.named_modules():
        if (
            getattr(module, "track_running_stats", False)
            and getattr(module, "running_mean", None) is not None
        ):
            raise ValueError(
                f"{name} ({type(module).__name__}) keeps statistics of private data in buffers, "
                "which no clip covers: use GroupNorm, LayerNorm, or track_running_stats=False"
            )


def dense_bytes(state: State) -> int:
    """The bytes of all weights in memory."""
    return sum(t.numel() * t.element_size() for t in state.values())


def settings_text(settings: dict[str, Any]) -> str:
    """Settings of a method as text."""
    return json.dumps(settings, sort_keys=True)


def as_arrays(state: State) -> ArrayRecord:
    """A state_dict as Flower's arrays."""
    return ArrayRecord({name: t.detach() for name, t in state.items()})


def to_cpu(state: State) -> State:
    """The tensors of a state_dict on the CPU."""
    return {name: torch.as_tensor(t).detach().cpu() for name, t in state.items()}
