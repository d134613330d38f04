"""An app of Flower that keeps its own training, with private updates around it, on nodes in one
process.
"""

from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedlsg
import fedlsg.flower
from fedlsg.privacy import Ledger
from fedlsg.simulations.client.virtual import FIRST_NODE
from fedlsg.simulations.engines.local import LocalGrid, task_identity
from fedlsg.strategies.protocol.stages import KEYS, SHARES
from fedlsg.strategies.protocol.wire import over_the_wire, stage_of

ROWS, CLIENTS = 30, 5


def build() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)
    )


def rows(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(client))
    return x, (x[:, 0] > 0).long()


def app_of(*mods: Any, answer: Any = None) -> ClientApp:
    """The ClientApp of a template: SGD on its own rows; ``answer(message, model)`` in place of the
    usual reply.
    """
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Any) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        x, y = rows(context.node_config["partition-id"])
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if answer is not None:
            return answer(message, model)
        metrics = MetricRecord({"train_loss": float(loss.detach()), "num-examples": ROWS})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    return app


class Nodes(LocalGrid):
    """Nodes of Flower; ``replies`` is what arrived, ``lost`` never answers."""

    def __init__(self, app: ClientApp, count: int = CLIENTS, lost: Any = ()) -> None:
        super().__init__(app, count, {})
        self.replies: list[Message] = []
        self.lost = lost

    def deliver(self, messages: Any, timeout: float | None) -> Any:
        silent = [FIRST_NODE + client for client in self.lost]
        asked = [
            m
            for m in messages
            if m.metadata.dst_node_id not in silent or stage_of(m.content) in (KEYS, SHARES)
        ]
        for reply in super().deliver(asked, timeout):
            self.replies.append(over_the_wire(reply))
            yield reply


def wrapped(inner: Any = None, **settings: Any) -> Any:
    given = {"epsilon": 200.0, "delta": 1e-5, "clip_norm": 1.0, **settings}
    inner = (
        FedAvg(fraction_evaluate=0.0, weighted_by_key="num-examples") if inner is None else inner
    )
    return fedlsg.flower.PrivateUpdates(inner, build, **given)


def flat(arrays: ArrayRecord) -> torch.Tensor:
    return torch.cat([t.flatten() for t in arrays.to_torch_state_dict().values()]).double()


def start(strategy: Any, grid: Nodes, rounds: int = 2) -> Any:
    torch.manual_seed(0)
    with task_identity():
        return strategy.start(grid, ArrayRecord(build().state_dict()), num_rounds=rounds)


def mod(folder: Path, **given: Any) -> Any:
    return fedlsg.flower.private_update(
        build, **{"epsilon": 200.0, "delta": 1e-5, "ledger": folder, **given}
    )


def ledgers(folder: Path) -> list[Any]:
    found = sorted(folder.rglob("client-*.jsonl"))
    return [Ledger(path, client=int(path.stem.split("-")[1])) for path in found]


def moved_by(strategy: Any, app: ClientApp) -> torch.Tensor:
    """What one round adds to the weights, as one vector."""
    torch.manual_seed(0)
    before = flat(ArrayRecord(build().state_dict()))
    return flat(start(strategy, Nodes(app), rounds=1).arrays) - before
