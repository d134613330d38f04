"""The app's ServerApp: a strategy of Flower as it was; the noise of all rounds together is found
here, once.
"""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedlsg
from digits_steps.task import Net, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    config = context.run_config
    steps = config["num-server-rounds"] * config["local-steps"]
    noise = fedlsg.calibrate_noise_multiplier(epsilon=8.0, delta=1e-5, sample_rate=0.3, steps=steps)
    result = FedAvg(fraction_train=config["fraction-train"], fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord(
            {"lr": config["lr"], "local-steps": config["local-steps"], "noise-multiplier": noise}
        ),
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
