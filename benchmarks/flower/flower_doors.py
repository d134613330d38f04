"""Two Flower apps that keep their training, with and without privacy: accuracy, epsilon, bytes;
nodes in one process.

python -m benchmarks.flower.flower_doors [--seeds 0 1 2] [--nodes 100 5]
"""

import argparse
import logging
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedlsg
import fedlsg.flower
from fedlsg.simulations.engines.local import LocalGrid, task_identity

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def trained(
    app: ClientApp,
    strategy: Any,
    package: str,
    nodes: int,
    rounds: int,
    config: dict[str, Any],
    seed: int,
) -> Any:
    """The result of a strategy over an app."""
    task, server = import_module(f"{package}.task"), import_module(f"{package}.server_app")
    torch.manual_seed(seed)
    with task_identity():
        return strategy.start(
            LocalGrid(app, nodes, {"local-epochs": 3}),
            ArrayRecord(task.Net().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord(config),
            evaluate_fn=server.global_evaluate,
        )


def updates(nodes: int, seed: int, settings: dict[str, Any] | None) -> Any:
    """examples/flower_updates: plain where there are no settings."""
    client = import_module("digits_updates.client_app")
    strategy: Any = FedAvg(fraction_evaluate=0.0)
    mods = []
    if settings is not None:
        net = import_module("digits_updates.task").Net
        mods = [
            fedlsg.flower.private_update(
                net, epsilon=8.0, delta=1e-5, trust="secure", ledger=tempfile.mkdtemp()
            )
        ]
        strategy = fedlsg.flower.PrivateUpdates(strategy, net, epsilon=8.0, **settings)
    app = ClientApp(mods=mods)
    app.train()(client.train)
    return trained(app, strategy, "digits_updates", nodes, 15, {"lr": 0.1}, seed)


def steps(nodes: int, seed: int, noise: float) -> Any:
    """examples/flower_steps, at a noise multiplier for 60 steps."""
    client = import_module("digits_steps.client_app")
    # as the app's own node, with a new ledger; no privacy is one of the rows
    client.node = fedlsg.flower.PrivateNode(
        epsilon=1e6 if noise < 1 else 8.001,
        delta=1e-5,
        least_noise_multiplier=min(noise, 1.0),
        ledger=tempfile.mkdtemp(),
    )
    app = ClientApp(mods=[client.node])
    app.train()(client.train)
    config = {"lr": 4.0, "local-steps": 2, "noise-multiplier": noise}
    return trained(app, FedAvg(fraction_evaluate=0.0), "digits_steps", nodes, 30, config, seed)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--nodes", type=int, nargs=2, default=[100, 5])
    parser.add_argument("--only", default="", help="a part of the names of rows")
    args = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    sys.path += [str(EXAMPLES / "flower_updates"), str(EXAMPLES / "flower_steps")]
    torch.set_num_threads(1)
    noise = fedlsg.calibrate_noise_multiplier(epsilon=8.0, delta=1e-5, sample_rate=0.3, steps=60)
    many, few = args.nodes
    secure = {"trust": "secure"}
    arms: dict[str, Any] = {
        f"updates, {many} nodes, without privacy": lambda s: updates(many, s, None),
        f"updates, {many} nodes, secure sum, rs": lambda s: updates(
            many, s, {**secure, "method": "rs", "sparsity": 0.5}
        ),
        f"updates, {many} nodes, secure sum, dense": lambda s: updates(many, s, secure),
        f"updates, {many} nodes, own noise": lambda s: updates(many, s, {}),
        f"steps, {few} nodes, noise 0.05 (no privacy)": lambda s: steps(few, s, 0.05),
        f"steps, {few} nodes": lambda s: steps(few, s, noise),
    }
    for name in (name for name in arms if args.only in name):
        run = arms[name]
        results = [run(seed) for seed in args.seeds]
        accuracy = [
            100 * float(list(r.evaluate_metrics_serverapp.values())[-1]["accuracy"])
            for r in results
        ]
        rounds = list(results[-1].train_metrics_clientapp.values())
        # all rounds: the masks of rs grow
        each = sum(r.get("uplink_bytes_per_client", 0) for r in rounds)
        print(
            f"{name:45} {mean(accuracy):.1f} ({min(accuracy):.1f} to {max(accuracy):.1f})  epsilon "
            f"{rounds[-1].get('epsilon', 'none')}  bytes up of a client in the whole run {each:,}",
            flush=True,
        )


if __name__ == "__main__":
    main()
