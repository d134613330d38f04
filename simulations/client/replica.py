"""A client's replica of the public state: it applies the server's steps; the digest of its weights
proves the result.

    shared    one replica for all simulated clients of a process; it reads missing steps from the
              run's folder of steps, from the initial model on (or the run's checkpoint if that is
              far behind)
    own       a client on a machine of its own: its replica is in a file of its own, written before
              it trains

Clients train the model of the replica itself, and put its weights back afterwards. The carriers of
a probe are read here, too, with a replica and without.
"""

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from fedlsg.carriers.probe import Basis, CannotDrawError, flatten, refresh_of, unflatten
from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.simulations.client.node.refusals import (
    FrameDiffersError,
    ReplicaDiffersError,
    ReplicaMissingError,
)
from fedlsg.simulations.planning.plan import Base
from fedlsg.simulations.settings.resolve import downlink_codec
from fedlsg.simulations.storage.atomic_files import load_bytes, save_bytes
from fedlsg.simulations.storage.updates import FAR
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
    """Where a shared replica finds what its process was not sent, and a replica of a client's own
    its file.
    """

    def step(self, version: int, /) -> bytes: ...

    def load_checkpoint(self) -> dict[str, Any]: ...

    def replica(self, client: int, /) -> Path: ...

    def basis(self, round: int, /) -> bytes: ...

    def own_basis(self, client: int, /) -> Path: ...


@dataclass(frozen=True, kw_only=True)
class Known:
    """Version and digest of the replica's weights, and its owner; None for a shared replica."""

    version: int
    owner: int | None
    digest: bytes = b""


@dataclass(kw_only=True, eq=False)
class Replica:
    """The state of ``known``; if that is None, no step can be applied to the model."""

    base: Base
    public: PublicState
    state: ServerState = field(init=False)
    known: Known | None = None
    _at_start: bool = True
    _frame: tuple[int, Frame] | None = None

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
        wanted = Known(
            version=reference.version, owner=None if shared else client, digest=reference.digest
        )
        known, self.known = self.known, None
        if known != wanted:
            self._frame = None if known is None or known.owner != wanted.owner else self._frame
            if "weights" in content.array_records:
                continues = self._take(content, announced, reference, known, run, wanted)
            else:
                continues = True
                self._catch_up(read_missed(content, reference), reference, known, run, wanted)
            if digest_of(self.state.weights) != wanted.digest:
                raise ReplicaDiffersError(
                    f"other weights here than the announced ones of version {wanted.version}"
                )
            if not continues:
                return wanted.digest
        self.state.round = finished_before(announced.round)
        probed = self._probed(content, announced.round, run, shared=shared)
        if (known != wanted or probed) and wanted.owner is not None:
            self._save(run.replica(wanted.owner), wanted)
        self.known = wanted
        return wanted.digest

    def frame(self, round: int) -> Frame:
        """The frame of a round that starts from this state; the step of that round is taken in it,
        too.

        Raises FrameDiffersError where it needs carriers that cannot be made here.
        """
        if self._frame is None or self._frame[0] != round:
            try:
                self._frame = round, self.state.frame(round)
            except CannotDrawError as error:
                raise FrameDiffersError(str(error)) from None
        return self._frame[1]

    def _probed(self, content: RecordDict, round: int, run: History, *, shared: bool) -> bool:
        """Take the carriers of a probe that were sent, else find or make those of the round;
        whether they are new.

        Where they cannot be made, ``frame`` asks for them: the replica itself is right, and kept.
        """
        before, sent = self.state.basis, read_basis(content)
        if sent is not None:
            self.state.take_basis(sent, round=round)
            self._frame = None
        elif shared:
            self._take_kept(run, round)
        with suppress(CannotDrawError):
            return self.state.basis_of(round) is not before
        return False

    def _take_kept(self, run: History, round: int) -> None:
        """In a simulation: the server's carriers of a round, in place of the same probe once
        more.
        """
        public, held = self.state.public, self.state.basis
        if public.source is None:
            return
        refresh = refresh_of(round, public.method.carrier)
        if held is None or held.round != refresh:
            self.state.basis = load_basis(public, lambda: run.basis(refresh), refresh)

    def _begin(self) -> None:
        self.state = self.base.server_state(self.public)
        self.state.average = None

    def _begin_again(self) -> None:
        if not self._at_start:
            load_weights(
                self.public.model,
                parameters_to_vector(trainable(self.base.build_model()).values()).detach(),
            )
            self._begin()

    def _take(
        self,
        content: RecordDict,
        announced: Announcement,
        reference: Reference,
        known: Known | None,
        run: History,
        wanted: Known,
    ) -> bool:
        """Take the whole model of a message; returns whether a replica continues from it."""
        if reference.base == reference.version:
            self._at_start = False
            state = read_state(content)
            restart(
                self.state,
                read_weights(content),
                state,
                round=announced.round,
                updates=announced.updates,
            )
            return True
        # the message leaves this client without a replica; the process still has one
        if wanted.owner is None:
            try:
                self._catch_up([], reference, known, run, wanted)
                if digest_of(self.state.weights) == wanted.digest:
                    return True
            except (ReplicaMissingError, ReplicaDiffersError):
                pass
        self._at_start = False
        load_weights(self.public.model, read_weights(content))
        return False

    def _catch_up(
        self,
        missed: list[Step],
        reference: Reference,
        known: Known | None,
        run: History,
        wanted: Known,
    ) -> None:
        """Steps to the announced version: those of the message, and in a shared process those
        before them.
        """
        base = reference.version - len(missed)
        version = self._recall(base, known, run, wanted)
        self._at_start = self._at_start and wanted.version == 0
        try:
            before = [run.step(v + 1) for v in range(version, base)]
            steps = [step for data in before for step in read_steps(data)]
        except (OSError, ValueError) as error:
            raise ReplicaMissingError(
                f"a step before version {base} cannot be read: {error}"
            ) from None
        for step in [*steps, *missed[max(version - base, 0) :]]:
            derived = (
                None if self._frame is None or self._frame[0] != step.round else self._frame[1]
            )
            self._frame = None
            if wanted.owner is None and step.round != PRUNING_ROUND:
                self._take_kept(run, step.round)
            try:
                replay(self.state, step, downlink_codec(self.base.settings), derived)
            except ValueError as error:
                raise ReplicaDiffersError(
                    f"round {step.round}'s update does not fit the replica: {error}"
                ) from None

    def _recall(self, base: int, known: Known | None, run: History, wanted: Known) -> int:
        """Version of the state that steps continue from: the current one, the client's file, or the
        initial model.
        """
        least = 0 if wanted.owner is None else base
        here = NOWHERE
        if (
            known is not None
            and known.owner == wanted.owner
            and least <= known.version <= wanted.version
        ):
            here = known.version
        if wanted.owner is None and wanted.version - max(here, 0) > FAR:
            version = self._checkpoint(run, wanted.version)
            here = here if version is None else version
        if here != NOWHERE:
            return here
        self._frame = None
        if wanted.owner is not None:
            version = self._load(run.replica(wanted.owner))
            if version is not None and least <= version <= wanted.version:
                return version
        if least > 0:
            raise ReplicaMissingError(f"no replica of version {base} here")
        self._begin_again()
        return 0

    def _checkpoint(self, run: History, newest: int) -> int | None:
        """Load the run's checkpoint as the replica; returns its version, or None if it is missing
        or too new.
        """
        try:
            saved = run.load_checkpoint()
        except ValueError:
            return None
        version = int(saved["downlink"]["version"])
        if version > newest:
            return None
        self._at_start, self._frame = False, None
        self.state.load_state_dict(saved["server"])
        self.state.average = None
        return version

    def _save(self, path: Path, known: Known) -> None:
        """Checked by its SHA-256, not synced: a lost file costs one whole model."""
        body = io.BytesIO()
        server = self.state.state_dict() | {"initial": {}}
        torch.save({"version": known.version, "server": server}, body)
        save_bytes(path, body.getvalue())

    def _load(self, path: Path) -> int | None:
        try:
            content = load_bytes(path)
            self._at_start = False
            saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            self.state.load_state_dict(saved["server"])
        except (OSError, ValueError):
            return None
        return int(saved["version"])


def read_basis_of(state: PublicState, flat: Tensor, round: int) -> Basis:
    """The basis of a refresh from its numbers. Raises ValueError for numbers that are none."""
    return unflatten(flat, state.method.carrier, state.parameters, state.carried, round=round)


def load_basis(state: PublicState, content: Callable[[], bytes], round: int) -> Basis | None:
    """The basis of a refresh from a file's content; None where that is missing or damaged."""
    try:
        return read_basis_of(
            state, torch.from_numpy(np.frombuffer(content(), "<f4").astype(np.float32)), round
        )
    except (OSError, ValueError):
        return None


def own_basis(run: History, client: int, round: int) -> Callable[[], bytes]:
    """The content of a client's own file; it raises ValueError if that is of another refresh."""

    def content() -> bytes:
        found = load_bytes(run.own_basis(client))
        if int.from_bytes(found[:8], "little") != round:
            raise ValueError(f"the basis is not that of round {round}")
        return found[8:]

    return content


def basis_bytes(basis: Basis) -> bytes:
    """The numbers of a basis as a file has them."""
    return flatten(basis).cpu().numpy().astype("<f4").tobytes()
