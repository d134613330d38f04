"""Flower's PyTorch template with the ``PrivateStep`` of docs/flower-app.md: accuracy at epsilon 8
by learning rate and clip norm; nodes in one process.

python -m benchmarks.flower.template_steps --data-dir DIR [--rows 3000] [--nodes 2]
    [--rates 0.1 1 2 4] [--clips 1.0 0.5] [--seeds 0 1]
"""

import argparse
import logging
import tempfile
import warnings
from statistics import mean
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional as F

import fedlsg
import fedlsg.flower
from fedlsg.simulations.engines.local import LocalGrid, task_identity

EPSILON, DELTA, SAMPLE_RATE, LOCAL_STEPS = 8.0, 1e-5, 0.3, 2
TEST_ROWS = 2000
Rows = tuple[torch.Tensor, torch.Tensor]


class Net(nn.Module):
    """The model of the template: a CNN of 62,006 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(x.view(-1, 16 * 5 * 5)))
        return self.fc3(F.relu(self.fc2(x)))


def app_of(train: Rows, nodes: int, clip_norm: float) -> ClientApp:
    """The ClientApp of the diff."""
    node = fedlsg.flower.PrivateNode(
        epsilon=EPSILON + 0.001, delta=DELTA, least_noise_multiplier=0.5, ledger=tempfile.mkdtemp()
    )
    app = ClientApp(mods=[node])

    @app.train()
    def update(msg: Message, context: Context) -> Message:
        model, config = Net(), msg.content["config"]
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        rows = tuple(part[client::nodes] for part in train)
        step = fedlsg.PrivateStep(
            model,
            nn.CrossEntropyLoss(),
            num_examples=len(rows[0]),
            sample_rate=SAMPLE_RATE,
            steps=config["local-steps"],
            noise_multiplier=config["noise-multiplier"],
            delta=DELTA,
            method="dpsgd",
            clip_norm=clip_norm,
            learning_rate=config["lr"],
            ledger=node.ledger(context),
            isolation="checked",  # half the time, the same steps
        )
        batches = step.batches(rows)
        for _ in range(config["local-steps"]):
            step.step(batches)
        return fedlsg.flower.reply(step, msg)

    return app


def accuracies(
    train: Rows, test: Rows, nodes: int, rounds: int, rate: float, clip_norm: float, seed: int
) -> list[float]:
    """Test accuracy in percent after each round, from round 0 on."""
    found: list[float] = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        model = Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = (model(test[0]).argmax(1) == test[1]).float().mean()
        found.append(100 * float(right))
        return MetricRecord({"accuracy": found[-1]})

    noise = fedlsg.calibrate_noise_multiplier(
        epsilon=EPSILON, delta=DELTA, sample_rate=SAMPLE_RATE, steps=rounds * LOCAL_STEPS
    )
    config = {"lr": rate, "local-steps": LOCAL_STEPS, "noise-multiplier": noise}
    torch.manual_seed(seed)
    strategy: Any = FedAvg(fraction_evaluate=0.0)
    with task_identity():
        strategy.start(
            LocalGrid(app_of(train, nodes, clip_norm), nodes, {}),
            ArrayRecord(Net().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord(config),
            evaluate_fn=evaluate,
        )
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 1.0, 2.0, 4.0])
    parser.add_argument("--clips", type=float, nargs="+", default=[1.0, 0.5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", RuntimeWarning)  # of steps that move little
    torch.set_num_threads(1)
    data = fedlsg.load_workload("cifar10", data_dir=args.data_dir)
    train, test = (
        (
            torch.as_tensor(split.inputs[:count]).float() / 127.5 - 1,
            torch.as_tensor(split.labels[:count]).long(),
        )
        for split, count in ((data.train, args.rows), (data.test, TEST_ROWS))
    )
    for rate in args.rates:
        for clip_norm in args.clips:
            curves = [
                accuracies(train, test, args.nodes, args.rounds, rate, clip_norm, seed)
                for seed in args.seeds
            ]
            last = [mean(curve[-5:]) for curve in curves]
            print(
                f"lr {rate:g}, clip {clip_norm:g}: last round {mean(c[-1] for c in curves):.1f} %, "
                f"last five {mean(last):.1f} % ({min(last):.1f} to {max(last):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
