"""The app's ServerApp. What fedlsg changes: one import and the wrapper around FedAvg."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedlsg.flower
from digits_updates.task import Net, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    config = context.run_config
    strategy = FedAvg(fraction_train=config["fraction-train"], fraction_evaluate=0.0)
    strategy = fedlsg.flower.PrivateUpdates(
        strategy, Net, epsilon=8.0, trust="secure", method="rs", sparsity=0.5
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["lr"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    if not result.arrays:
        raise RuntimeError("every client refused: the log of the first round says why")
    torch.save(result.arrays.to_torch_state_dict(), config["out"])


def global_evaluate(server_round: int, arrays: ArrayRecord):
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": test(net, load_test())})
