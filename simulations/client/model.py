"""What a process keeps between messages: public data structures of a run, weights and frame of a round."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from flwr.app import RecordDict
from torch import Tensor, nn

from fedlsg.carriers import carried_parameters, find_classifier, frozen_bases
from fedlsg.frame import Frame
from fedlsg.gradients import Checked, trainable
from fedlsg.gradients.supported import check
from fedlsg.masks import saliency_frame
from fedlsg.method import initial_needed, make_frame
from fedlsg.state import load_weights
from fedlsg.tensors import freed_memory
from simulations.client.replica import Replica
from simulations.grids.refusals import FrameDiffersError
from simulations.plan.plan import Base, prepare
from simulations.settings.settings import Settings
from strategies.federation.wire import Announcement, flat_bytes, read_frame, read_kept, read_weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """What all clients of a round share: the received weights, their digest, the frame, and the model's parameters
    after the check that they fit the frame.
    """

    weights: bytes
    digest: bytes
    version: tuple[int, int, bytes]
    frame: Frame
    parameters: Checked


@dataclass(kw_only=True, eq=False)
class Process:
    """What one process keeps between messages: public data structures only, no client's state.

    ``model`` holds the weights of ``loaded``: code that trains it puts them back.
    """

    base: Base
    model: nn.Module
    initial: dict[str, Tensor]
    carried: tuple[str, ...]
    classifier: str
    loaded: Loaded | None = None
    replica: Replica | None = None

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trainable parameters as they are now, by name."""
        return {name: p.detach() for name, p in trainable(self.model).items()}


_SERVED: list[Base] = []


@contextmanager
def serving(base: Base) -> Iterator[None]:
    """Clients of this process use ``base`` instead of preparing their own: audits train on their own examples."""
    process.cache_clear()
    _SERVED.append(base)
    try:
        yield
    finally:
        _SERVED.pop()
        process.cache_clear()


@lru_cache(maxsize=2)
def process(settings: Settings) -> Process:
    """Data, initial model and W_0, built once a process."""
    set_up(settings)
    return assemble(_SERVED[-1] if _SERVED else prepare(settings))


def set_up(settings: Settings) -> None:
    """Settings of the whole process: torch's threads, and freed memory."""
    torch.set_num_threads(settings.threads)
    freed_memory.keep()


def assemble(base: Base) -> Process:
    """Build from a base: initial model, W_0, replica."""
    model = base.build_model()
    carried = carried_parameters(model, base.method.carrier, classifier=base.workload.classifier)
    needed = initial_needed(base.method, trainable(model), carried)
    initial = {name: trainable(model)[name].detach().clone() for name in needed}
    initial |= frozen_bases(model)
    return Process(
        base=base,
        model=model,
        initial=initial,
        carried=carried,
        classifier=find_classifier(model, base.workload.classifier),
        replica=Replica(base=base, model=model, initial=initial) if base.settings.downlink == "sparse" else None,
    )


def load(here: Process, announced: Announcement, content: RecordDict, followed: bytes | None) -> Loaded:
    """The model's weights and the frame, made by the first client of a process in a round and used by the others.

    Guarantee: weights and frame are reused only for the same received bytes, or, if a replica ``followed``, the same
    digest.
    """
    sent = flat_bytes(content) if followed is None else followed
    version = (announced.round, announced.updates, announced.frame_digest)
    known, here.loaded = here.loaded, None  # after an error nothing looks loaded
    if followed is not None and (known is None or known.weights != followed):
        digest = followed
    elif known is None or known.weights != sent:
        load_weights(here.model, read_weights(content))
        digest = hashlib.sha256(sent).digest()
    elif known.version == version:
        here.loaded = known  # the digest covers the kept positions and the carriers, too
        return known
    else:
        digest = known.digest
    frame = _frame(here, announced, content)
    parameters = check(here.model, frame)
    here.loaded = Loaded(weights=sent, digest=digest, version=version, frame=frame, parameters=parameters)
    return here.loaded


def _derived(here: Process, announced: Announcement, content: RecordDict) -> Frame:
    weights = here.weights
    if announced.round == 0:
        if not here.base.method.prune.reads_data:
            raise ValueError("the server asks for a pruning round, which this run's settings do not have")
        return saliency_frame(weights)
    if here.replica is not None and here.replica.known is not None:
        return here.replica.frame(announced.round)
    ranked = here.base.method.mask.ranking == "gradients"
    return make_frame(
        here.base.method,
        weights,
        here.initial,
        carried=here.carried,
        round=announced.round,
        updates=announced.updates,
        schedule=here.base.schedule,
        seed=here.base.settings.seed,
        classifier=here.classifier,
        kept=read_kept(content, sum(W.numel() for W in weights.values())) if ranked else None,
    )


def _frame(here: Process, announced: Announcement, content: RecordDict) -> Frame:
    frame = _derived(here, announced, content)
    if frame.digest != announced.frame_digest:
        sent = read_frame(content, frame)
        if sent is None or sent.digest != announced.frame_digest:
            raise FrameDiffersError("the frame derived here has another digest than the announced one")
        return sent
    return frame
