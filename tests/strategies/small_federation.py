"""A tiny federation without data: a model of two layers, and clients that send what a test says."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import Context, Message, RecordDict
from torch import Tensor, nn

from fedlsg.carriers.probe import ProbeSource
from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, Schedule
from fedlsg.payload import find_codec, pack
from fedlsg.simulations.engines.local import LocalGrid
from fedlsg.state.public_state import PublicState
from fedlsg.state.round_plan import ClientTerms
from fedlsg.state.server_state import ServerState
from fedlsg.strategies import recipe
from fedlsg.strategies.protocol.expectations import Uplink
from fedlsg.strategies.protocol.round_report import RoundReport
from fedlsg.strategies.protocol.wire import (
    Announcement,
    announced_to,
    flat_record,
    frame_record,
    identity,
    kept_record,
    read_round,
    update,
)
from fedlsg.strategies.strategy import FederationSettings, FedLSG

EXAMPLES = 50


def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 10), nn.Tanh())
    net.add_module("classifier", nn.Linear(10, 3))
    return net


PROBES = ProbeSource(
    name="normal numbers",
    draw=lambda count, generator: torch.randn(count, 12, generator=generator),
    loss=lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
    num_classes=3,
)


def server_state(
    method: str = "lsg", *, rounds: int = 10, divisor: float = 4.0, seed: int = 0, **choices: Any
) -> ServerState:
    choices = (
        {"rank": 2, "learning_rate": 0.5, "momentum": 0.9} | choices if method == "lsg" else choices
    )
    how, schedule = recipe(method, **choices), Schedule(rounds=rounds)
    public = PublicState.start(
        model(), how, schedule, seed=seed, classifier="classifier", source=PROBES
    )
    return ServerState(public, divisor=divisor, pruning_inputs=torch.zeros(1, 12))


def values_for(frame: Frame, partition: int, round: int) -> Tensor:
    """What an honest client sends: any values, here small random ones."""
    return (
        torch.randn(frame.kept, generator=torch.Generator().manual_seed(1000 * round + partition))
        / 10
    )


def public_terms(clients: int, **more: float) -> list[ClientTerms]:
    """Terms of clients of different sizes."""
    common = {"sample_rate": 0.5, "noise_multiplier": 1.0} | more
    return [ClientTerms(num_examples=EXAMPLES + i, **common) for i in range(clients)]


class StepsInMemory(dict[int, bytes]):
    """The steps of a sparse downlink, for one process."""

    def save(self, version: int, step: bytes) -> None:
        self[version] = step

    def load(self, version: int) -> bytes:
        if version not in self:
            raise ValueError(f"no step leads to version {version}")
        return self[version]

    def cut(self, version: int) -> None:
        for later in [v for v in self if v > version]:
            del self[later]


def announcement(
    weights: Tensor,
    announced: Announcement,
    frame: Frame | None = None,
    ranked: Frame | None = None,
) -> RecordDict:
    """Content of a train message with the whole weights; with a frame that cannot be derived, or
    its positions.
    """
    frames = {} if frame is None else {"frame": frame_record(frame)}
    kept = {} if ranked is None else {"kept": kept_record(ranked)}
    return announced_to({"weights": flat_record(weights), **frames, **kept}, announced)


class Federation:
    """The strategy over a local grid; ``answer(partition, message, honest)`` may replace a client's
    reply.
    """

    def __init__(
        self,
        state: ServerState,
        clients: int = 3,
        answer: Callable[[int, Message, Message], Any] | None = None,
        **settings: Any,
    ) -> None:
        self.state, self.answer = state, answer
        self.reports: list[RoundReport] = []
        known = {
            "terms": public_terms(clients),
            "clients_per_round": clients,
            "local": LocalTraining(),
        }
        codec = find_codec("float32")
        known |= {"uplink": Uplink(method=state.method, codec=codec, seed=state.seed)} | settings
        self.strategy = FedLSG(state, FederationSettings(**known), on_round=self.reports.append)
        self.grid = LocalGrid(self.client, clients, {})

    def client(self, message: Message, context: Context) -> Any:
        partition = int(context.node_config["partition-id"])
        if message.metadata.message_type == "query":
            return Message(identity(partition, EXAMPLES + partition), reply_to=message)
        honest = Message(update(self.payload(partition, message), partition), reply_to=message)
        return honest if self.answer is None else self.answer(partition, message, honest)

    def payload(self, partition: int, message: Message) -> bytes:
        announced = read_round(message.content)
        frame = self.state.frame()
        values = values_for(frame, partition, announced.round)
        return pack(
            values, frame.indices, size=frame.size, round=announced.round, digest=frame.digest
        )

    def run(self, rounds: int = 1) -> list[RoundReport]:
        self.strategy.start(self.grid, flat_record(self.state.weights), num_rounds=rounds)
        return self.reports
