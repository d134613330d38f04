"""The state of a process between messages: public data of a run, weights and frame of a round."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.common.logger import log

from fedlsg.carriers.probe import Basis, refresh_of
from fedlsg.frame import Frame
from fedlsg.gradients import Checked, check
from fedlsg.simulations.client.node.refusals import ChangedModelError, FrameDiffersError
from fedlsg.simulations.client.replica import (
    History,
    Replica,
    basis_bytes,
    load_basis,
    own_basis,
    read_basis_of,
)
from fedlsg.simulations.client.virtual import GPU_OPTION, lacks_gpu
from fedlsg.simulations.planning.base.isolation_level import with_level
from fedlsg.simulations.planning.base.memory import with_microbatch
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.atomic_files import parse_checkpoint, save_bytes
from fedlsg.simulations.storage.updates import MAX_REPLAYED_STEPS
from fedlsg.state import PublicState, RoundPlan, load_weights, plan_round
from fedlsg.strategies.protocol.downlink import read_basis
from fedlsg.strategies.protocol.wire import (
    Announcement,
    flat_bytes,
    read_frame,
    read_kept,
    read_weights,
)
from fedlsg.tensors import keep_freed_memory
from fedlsg.user_code.fingerprint import Followed


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """The state that all clients of a round share.

    weights: as received; the digest of a replica's weights if a replica followed.
    digest: of the weights.
    announced: the part of the announcement that is common to all clients.
    plan: the plan that follows from it.
    parameters: of the model, checked against the frame.
    """

    weights: bytes
    digest: bytes
    announced: Announcement
    plan: RoundPlan
    parameters: Checked


@dataclass(eq=False)
class Held:
    """The basis (carriers of a probe) of one client, or of all simulated clients of a process.

    state: the public state.
    basis: the one that was used last; None before.
    """

    state: PublicState
    basis: Basis | None = None

    def candidates(
        self,
        announced: Announcement,
        content: RecordDict,
        run: History,
        client: int,
        *,
        shared: bool,
    ) -> Iterator[Basis]:
        """Possible bases of a round, the likely one first; the frame's digest shows the right one.

        ``shared``: clients of one machine read the server's file instead of their own.
        """
        round = refresh_of(announced.round, self.state.method.carrier)
        sent = read_basis(content)
        if sent is not None:
            yield read_basis_of(self.state, sent, round)
        if self.basis is not None and self.basis.round == round:
            yield self.basis
        read = (lambda: run.basis(round)) if shared else own_basis(run, client, round)
        stored = load_basis(self.state, read, round)
        if stored is not None:
            yield stored
        source = self.state.source
        if announced.round == round and source is not None and source.draw is not None:
            yield self.state.probe(round, updates=announced.updates)

    def keep(self, basis: Basis, run: History, client: int, *, shared: bool) -> None:
        """Keep a basis that fits.

        A client on its own machine writes a file: the round in 8 bytes, then the numbers. The file
        is not synced: a lost basis can be sent again.
        """
        if self.basis is not basis and not shared:
            content = basis.round.to_bytes(8, "little") + basis_bytes(basis)
            save_bytes(run.own_basis(client), content)
        self.basis = basis


@dataclass(kw_only=True, eq=False)
class Process:
    """State of one process between messages: public data structures only, no client's state.

    base: settings, data and method.
    state: public state; its model has the weights of ``loaded``, and code that trains it restores
        them.
    held: the carriers of a probe.
    loaded: weights and frame of the last round; None before.
    replica: with a sparse downlink.
    draws_numbers: whether the model was seen to draw numbers, as dropout does.
    followed: detects changes of model and loss between passes; None in a rehearsal.
    """

    base: Base
    state: PublicState
    held: Held
    loaded: Loaded | None = None
    replica: Replica | None = None
    draws_numbers: bool = False
    followed: Followed | None = None

    def check_unchanged(self) -> None:
        """Raise ChangedModelError if model or loss changed since they were built or last used."""
        change = "" if self.followed is None else self.followed.change()
        if change:
            raise ChangedModelError(
                f"the model or the loss was changed after the run had checked it ({change}): "
                "nothing was charged for this round; change it in the function that builds the "
                "model, and start another run"
            )

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Allow model and loss to change themselves in the block, in which they run."""
        try:
            yield
        finally:
            if self.followed is not None:
                self.followed.accept()


_SERVED: list[Base] = []
"""The bases of enclosing ``serving`` blocks."""


@contextmanager
def serving(base: Base) -> Iterator[None]:
    """Let clients of this process use ``base`` in the block, instead of preparing their own.

    Audits, for example, train on their own examples.
    """
    process.cache_clear()
    _SERVED.append(base)
    try:
        yield
    finally:
        _SERVED.pop()
        process.cache_clear()


def is_served() -> bool:
    """Whether this process is in a ``serving`` block."""
    return bool(_SERVED)


@lru_cache(maxsize=2)  # by settings; ``serving`` clears it
def process(settings: Settings) -> Process:
    """The state of this process for a run: data, initial model and W_0, built once."""
    set_up(settings)
    if lacks_gpu(settings):
        log(WARNING, GPU_OPTION)
    return assemble(_SERVED[-1] if _SERVED else with_microbatch(with_level(prepare(settings))))


def set_up(settings: Settings) -> None:
    """Set torch's threads, and let the process keep freed memory."""
    torch.set_num_threads(settings.threads)
    keep_freed_memory()


def assemble(base: Base) -> Process:
    """Build the initial model, W_0 and the replica of a base."""
    if base.device == "cuda":  # so that run.log has its name
        log(INFO, "clients of this process compute on %s", torch.cuda.get_device_name())
    state = base.initial.public()
    replica = Replica(base=base, public=state) if base.settings.downlink == "sparse" else None
    followed = Followed(state.model, base.workload.loss)
    return Process(base=base, state=state, held=Held(state), replica=replica, followed=followed)


def load(
    here: Process,
    announced: Announcement,
    content: RecordDict,
    followed: bytes | None,
    run: History,
    client: int,
    *,
    shared: bool,
) -> Loaded:
    """Load the announced weights into the model and derive the frame, once a round for a process.

    ``followed``: the digest of the weights, if a replica has loaded them; else None.

    Guarantee: weights and frame are reused only for the same received bytes, or for the same
    digest ``followed``. Raises ChangedModelError if model or loss changed since the last round.
    """
    weights = flat_bytes(content) if followed is None else followed
    common = announced.common
    before = here.loaded
    here.loaded = None  # after an error nothing is loaded
    if before is None or before.announced != common:
        here.check_unchanged()
    if before is not None and before.weights == weights:
        if before.announced == common:  # its digest covers kept positions and carriers, too
            here.loaded = before
            return before
        digest = before.digest
    elif followed is not None:
        digest = followed
    else:
        load_weights(here.state.model, read_weights(content))
        digest = hashlib.sha256(weights).digest()
    if here.state.source is not None and (here.replica is None or here.replica.known is None):
        with here.passing():
            frame = _probed_frame(here, announced, content, run, client, shared=shared)
    else:
        frame = _frame(here, announced, content)
    here.loaded = Loaded(
        weights=weights,
        digest=digest,
        announced=common,
        plan=plan_round(
            here.base.method,
            announced.round,
            frame,
            here.state.local_training(here.base.local, announced.updates),
            here.base.sums,
            here.base.unit,
        ),
        parameters=check(here.state.model, frame),
    )
    return here.loaded


def derived_frame(here: Process, announced: Announcement, content: RecordDict) -> Frame:
    """The frame of a round as this client derives it, from its replica if it has one."""
    if here.replica is not None and here.replica.known is not None:
        return here.replica.frame(announced.round)
    kept = None
    if here.base.method.mask.ranking == "gradients":
        kept = read_kept(content, sum(W.numel() for W in here.state.parameters.values()))
    return here.state.frame(announced.round, updates=announced.updates, kept=kept)


def _frame(here: Process, announced: Announcement, content: RecordDict) -> Frame:
    """The announced frame, without carriers of a probe. Raises FrameDiffersError."""
    frame = _as_announced(derived_frame(here, announced, content), announced, content)
    if frame is None:
        raise FrameDiffersError("the frame derived here has another digest than the announced one")
    return frame


def _probed_frame(
    here: Process,
    announced: Announcement,
    content: RecordDict,
    run: History,
    client: int,
    *,
    shared: bool,
) -> Frame:
    """The announced frame, from the first basis that gives it. Raises FrameDiffersError."""
    for basis in here.held.candidates(announced, content, run, client, shared=shared):
        derived = here.state.frame(announced.round, updates=announced.updates, basis=basis)
        frame = _as_announced(derived, announced, content)
        if frame is not None:
            here.held.keep(basis, run, client, shared=shared)
            return frame
    raise FrameDiffersError(f"no basis here gives the announced frame of round {announced.round}")


def _as_announced(derived: Frame, announced: Announcement, content: RecordDict) -> Frame | None:
    """The derived or the sent frame, whichever has the announced digest; None if neither has."""
    if derived.digest == announced.frame_digest:
        return derived
    sent = read_frame(content, derived)
    return sent if sent is not None and sent.digest == announced.frame_digest else None


@dataclass(eq=False)
class SentHistory:
    """The files of the run that the driver has sent to this process.

    steps: of a sparse downlink, by version.
    bases: the carriers of the last probe, by its round.
    checkpoint: in place of early steps; None if none was sent.
    """

    steps: dict[int, bytes] = field(default_factory=dict)
    bases: dict[int, bytes] = field(default_factory=dict)
    checkpoint: bytes | None = None

    def add(
        self, sent: Sequence[tuple[int, bytes]], bases: Sequence[tuple[int, bytes]] = ()
    ) -> None:
        """Keep what the driver has sent: steps with their version, a checkpoint as version -1."""
        self.bases = dict(bases) or self.bases
        for version, content in sent:
            if version < 0:
                self.checkpoint = content
            else:
                self.steps[version] = content
        for version in sorted(self.steps)[:-MAX_REPLAYED_STEPS]:
            del self.steps[version]

    def forget(self) -> None:
        """Remove everything: another run begins."""
        self.steps, self.bases, self.checkpoint = {}, {}, None

    def step(self, version: int) -> bytes:
        """The step to a version. Raises FileNotFoundError if it was not sent."""
        if version not in self.steps:
            raise FileNotFoundError(f"step {version} was not sent")
        return self.steps[version]

    def load_checkpoint(self) -> dict[str, Any]:
        """The checkpoint that was sent. Raises ValueError if none was."""
        if self.checkpoint is None:
            raise ValueError("no checkpoint was sent")
        return parse_checkpoint(self.checkpoint, Path("checkpoint of the driver"))

    def basis(self, round: int) -> bytes:
        """The carriers that the server probed in a round. Raises FileNotFoundError if not sent."""
        if round not in self.bases:
            raise FileNotFoundError(f"the carriers of round {round} were not sent")
        return self.bases[round]

    def own_basis(self, client: int) -> Path:
        """No client of this process has a file of its own: they share one basis."""
        raise LookupError(f"client {client} has no basis of its own")

    def replica(self, client: int) -> Path:
        """No client of this process has a file of its own: they share one replica."""
        raise LookupError(f"client {client} has no replica of its own")


HISTORY = SentHistory()
"""The files that this process was sent; another run begins without any."""
