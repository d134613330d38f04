"""A client's replica of the public state: it applies the server's steps, and a digest checks it.

    shared    one replica for all simulated clients of a process; it reads missing steps from the
              run's folder of steps, from the initial model on, or from the run's checkpoint if it
              is far behind
    own       a client on a machine of its own: its replica is in a file of its own, written before
              it trains

Clients train the model of the replica itself, and restore its weights afterwards. The carriers of a
probe are read here, too, with a replica and without.
"""

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from fedlsg import bounded
from fedlsg.carriers.probe import Basis, CannotDrawError, flatten, refresh_of, unflatten
from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.simulations.client.node.refusals import (
    FrameDiffersError,
    ReplicaDiffersError,
    ReplicaMissingError,
)
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.settings.resolve import downlink_codec
from fedlsg.simulations.storage.atomic_files import load_bytes, save_bytes
from fedlsg.simulations.storage.updates import MAX_REPLAYED_STEPS
from fedlsg.state import PublicState, ServerState, Step, load_weights, replay, restart
from fedlsg.state.round_plan import PRUNING_ROUND, finished_before
from fedlsg.state.server_update import read_steps
from fedlsg.strategies.protocol.downlink import (
    NOWHERE,
    Reference,
    digest_of,
    read_basis,
    read_missed,
    read_reference,
    read_state,
)
from fedlsg.strategies.protocol.wire import Announcement, read_weights


class History(Protocol):
    """The files of a run that replicas read: of the server, and a client's own."""

    def step(self, version: int, /) -> bytes:
        """The server's step to a version."""

    def load_checkpoint(self) -> dict[str, Any]:
        """The server's checkpoint."""

    def replica(self, client: int, /) -> Path:
        """The file of a client's own replica."""

    def basis(self, round: int, /) -> bytes:
        """The carriers that the server probed in a round."""

    def own_basis(self, client: int, /) -> Path:
        """The file of a client's own carriers."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a replica holds.

    version: of the weights.
    owner: the client; None for a shared replica.
    digest: of the weights.
    """

    version: int
    owner: int | None
    digest: bytes = b""


class Saved(NamedTuple):
    """A state of the server that was saved, with its version."""

    version: int
    server: dict[str, Any]


@dataclass(frozen=True)
class Shared:
    """The place of a shared replica: the run's folder has every step from the initial model on."""

    run: History
    owner: None = None

    def least(self, base: int) -> int:
        """The oldest version that a message whose steps follow ``base`` can continue from."""
        return 0

    def saved(self, version: int, wanted: int) -> Saved | None:
        """The run's checkpoint, if a replica at ``version`` is far behind."""
        if wanted - max(version, 0) <= MAX_REPLAYED_STEPS:
            return None
        try:
            checkpoint = self.run.load_checkpoint()
        except ValueError:
            return None
        return Saved(int(checkpoint["downlink"]["version"]), checkpoint["server"])

    def steps(self, version: int, base: int) -> list[Step]:
        """The steps from ``version`` to ``base``. Raises ReplicaMissingError."""
        try:
            steps = list[Step]()
            for number in range(version + 1, base + 1):
                steps += read_steps(self.run.step(number))
            return steps
        except (OSError, ValueError) as error:
            raise ReplicaMissingError(
                f"a step before version {base} cannot be read: {error}"
            ) from None

    def load_basis(self, state: ServerState, round: int) -> None:
        """Take the server's carriers of a round, which are those of the client's own probe."""
        public = state.public
        if public.source is None:
            return
        refresh = refresh_of(round, public.method.carrier)
        if state.basis is None or state.basis.round != refresh:
            state.basis = load_basis(public, lambda: self.run.basis(refresh), refresh)

    def save(self, state: ServerState, version: int) -> None:
        """Do nothing: no file is needed."""


@dataclass(frozen=True)
class Own:
    """The place of a client's own replica: a file has its last state, messages the steps since."""

    run: History
    owner: int

    def least(self, base: int) -> int:
        """The oldest version that a message whose steps follow ``base`` can continue from."""
        return base

    def saved(self, version: int, wanted: int) -> Saved | None:
        """The state in the client's file, if this process has no replica of it."""
        if version != NOWHERE:
            return None
        try:
            content = io.BytesIO(load_bytes(self.run.replica(self.owner)))
            bounded.check_stored(content)
            saved = torch.load(content, map_location="cpu", weights_only=True)
        except (OSError, ValueError):
            return None
        return Saved(int(saved["version"]), saved["server"])

    def steps(self, version: int, base: int) -> list[Step]:
        """No steps: no version before ``base`` is used."""
        return []

    def load_basis(self, state: ServerState, round: int) -> None:
        """Do nothing: the client computes the probe itself."""

    def save(self, state: ServerState, version: int) -> None:
        """Write the file with its SHA-256, not synced: if it is lost, the whole model is sent."""
        body = io.BytesIO()
        torch.save({"version": version, "server": state.state_dict() | {"initial": {}}}, body)
        save_bytes(self.run.replica(self.owner), body.getvalue())


Place = Shared | Own
"""The source of what a replica lacks."""


@dataclass(kw_only=True, eq=False)
class Replica:
    """The replica of a process.

    base: settings and method of the run.
    public: the public state, whose model it changes.
    state: the server's state, as of ``known``.
    known: version, digest and owner; None if no step can be applied to the model.
    """

    base: Base
    public: PublicState
    state: ServerState = field(init=False)
    known: Known | None = None
    _at_start: bool = True
    """Whether the model still has its initial weights."""
    _frame: tuple[int, Frame] | None = None
    """The last frame, with its round."""

    def __post_init__(self) -> None:
        self._begin()

    def follow(
        self,
        content: RecordDict,
        announced: Announcement,
        run: History,
        client: int,
        *,
        shared: bool,
    ) -> bytes:
        """Bring the model to the announced weights; returns their digest.

        Raises ReplicaMissingError or ReplicaDiffersError; the old replica is then forgotten.
        """
        reference = read_reference(content)
        assert reference is not None
        place = Shared(run) if shared else Own(run, client)
        wanted = Known(version=reference.version, owner=place.owner, digest=reference.digest)
        known, self.known = self.known, None  # after an error nothing is known
        if known != wanted:
            if known is None or known.owner != wanted.owner:
                self._frame = known = None
            if "weights" in content.array_records:
                continues = self._take(content, announced, reference, known, place)
            else:
                continues = True
                self._catch_up(read_missed(content, reference), reference.version, known, place)
            if digest_of(self.state.weights) != wanted.digest:
                raise ReplicaDiffersError(
                    f"other weights here than the announced ones of version {wanted.version}"
                )
            if not continues:
                return wanted.digest
        self.state.round = finished_before(announced.round)
        probed = self._probed(content, announced.round, place)
        if known != wanted or probed:
            place.save(self.state, wanted.version)
        self.known = wanted
        return wanted.digest

    def frame(self, round: int) -> Frame:
        """The frame of a round that starts from this state; the step after it uses it, too.

        Raises FrameDiffersError if it needs carriers that cannot be made here.
        """
        if self._frame is None or self._frame[0] != round:
            try:
                self._frame = round, self.state.frame(round)
            except CannotDrawError as error:
                raise FrameDiffersError(str(error)) from None
        return self._frame[1]

    def _probed(self, content: RecordDict, round: int, place: Place) -> bool:
        """Take the carriers that were sent, or find or make those of the round; are they new?

        If they cannot be made, ``frame`` asks the server for them; the replica is kept.
        """
        before, sent = self.state.basis, read_basis(content)
        if sent is not None:
            self.state.load_basis(sent, round=round)
            self._frame = None
        else:
            place.load_basis(self.state, round)
        with suppress(CannotDrawError):
            return self.state.basis_of(round) is not before
        return False

    def _begin(self) -> None:
        """Set the state to that before the first round."""
        self.state = self.base.initial.server(self.public)
        self.state.average = None

    def _begin_again(self) -> None:
        """Go back to the initial model."""
        if not self._at_start:
            initial = trainable(self.base.initial.model()).values()
            load_weights(self.public.model, parameters_to_vector(initial).detach())
            self._begin()

    def _take(
        self,
        content: RecordDict,
        announced: Announcement,
        reference: Reference,
        known: Known | None,
        place: Place,
    ) -> bool:
        """Take the whole model of a message; returns whether the replica continues."""
        if reference.base == reference.version:
            self._at_start = False
            restart(
                self.state,
                read_weights(content),
                read_state(content),
                round=announced.round,
                updates=announced.updates,
            )
            return True
        # the message has weights without a state: a shared replica may catch up by its own steps
        if place.owner is None:
            with suppress(ReplicaMissingError, ReplicaDiffersError):
                self._catch_up([], reference.version, known, place)
                if digest_of(self.state.weights) == reference.digest:
                    return True
        self._at_start = False
        load_weights(self.public.model, read_weights(content))
        return False

    def _catch_up(
        self, missed: list[Step], version: int, known: Known | None, place: Place
    ) -> None:
        """Apply the steps to the announced version: first of the place, then of the message."""
        base = version - len(missed)
        begun = self._recall(base, version, known, place)
        self._at_start = self._at_start and version == 0
        for step in [*place.steps(begun, base), *missed[max(begun - base, 0) :]]:
            derived = None
            if self._frame is not None and self._frame[0] == step.round:
                derived = self._frame[1]
            self._frame = None
            if step.round != PRUNING_ROUND:
                place.load_basis(self.state, step.round)
            try:
                replay(self.state, step, downlink_codec(self.base.settings), derived)
            except ValueError as error:
                raise ReplicaDiffersError(
                    f"round {step.round}'s update does not fit the replica: {error}"
                ) from None

    def _recall(self, base: int, wanted: int, known: Known | None, place: Place) -> int:
        """Set the state that steps continue from: current, saved or initial; returns its version.

        base: the version before the steps of the message.
        """
        usable = range(place.least(base), wanted + 1)
        current = known.version if known is not None and known.version in usable else NOWHERE
        saved = place.saved(current, wanted)
        if saved is not None and saved.version in usable:
            self._at_start, self._frame, current = False, None, NOWHERE
            with suppress(ValueError):
                self.state.load_state_dict(saved.server)
                self.state.average = None
                return saved.version
        if current != NOWHERE:
            return current
        self._frame = None
        if usable.start > 0:
            raise ReplicaMissingError(f"no replica of version {base} here")
        self._begin_again()
        return 0


def read_basis_of(state: PublicState, flat: Tensor, round: int) -> Basis:
    """The basis of a refresh from its numbers. Raises ValueError for other numbers."""
    return unflatten(flat, state.method.carrier, state.parameters, state.carried, round=round)


def load_basis(state: PublicState, content: Callable[[], bytes], round: int) -> Basis | None:
    """The basis of a refresh from the content of a file; None if it is missing or damaged."""
    try:
        flat = torch.from_numpy(np.frombuffer(content(), "<f4").astype(np.float32))
        return read_basis_of(state, flat, round)
    except (OSError, ValueError):
        return None


def own_basis(run: History, client: int, round: int) -> Callable[[], bytes]:
    """A function that reads a client's own file; ValueError if it is of another refresh.

    The file has the round in 8 bytes, then the numbers.
    """

    def read() -> bytes:
        content = load_bytes(run.own_basis(client))
        if int.from_bytes(content[:8], "little") != round:
            raise ValueError(f"the basis is not that of round {round}")
        return content[8:]

    return read


def basis_bytes(basis: Basis) -> bytes:
    """The numbers of a basis, as in files: float32, little-endian."""
    return flatten(basis).cpu().numpy().astype("<f4").tobytes()
