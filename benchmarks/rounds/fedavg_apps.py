"""The job in plain Flower, as in its PyTorch quickstart: FedAvg, the state dict in both directions;
or LocalDpMod.
"""

from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from benchmarks.rounds import jobs
from benchmarks.rounds.gate import Gate
from fedlsg.simulations.workloads.base import Options

client = ClientApp()  # a line each: Flower looks for them in the text
private_client = ClientApp(
    mods=[LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=8.0, delta=1e-5)]
)
server = ServerApp()


@cache
def images() -> tuple[Tensor, Tensor]:
    """All images in the model's input format, and their labels; made once in each process."""
    workload = jobs.load(
        data_dir=None, cache_dir=None, options=Options(), progress=lambda text: None
    )
    return workload.train.batch(torch.arange(jobs.CLIENTS * jobs.IMAGES))


@private_client.train()
@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model: nn.Module = jobs.MODELS[str(context.run_config["model"])]()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = images()
    part = torch.arange(jobs.IMAGES) + jobs.IMAGES * int(context.node_config["partition-id"])
    for rows in part[torch.randperm(jobs.IMAGES)].split(jobs.BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": jobs.IMAGES})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    torch.set_num_threads(1)
    gate = Gate.from_environment()

    def after(round: int, arrays: ArrayRecord) -> MetricRecord:
        if round:
            gate.wait(round + 1)
        return MetricRecord({})

    strategy = FedAvg(
        fraction_train=jobs.COHORT / jobs.CLIENTS,
        fraction_evaluate=0.0,
        min_train_nodes=jobs.COHORT,
        min_available_nodes=jobs.CLIENTS,
    )
    model = jobs.MODELS[str(context.run_config["model"])]()
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": 0.01}),
        num_rounds=int(context.run_config["rounds"]),  # type: ignore[arg-type]
        evaluate_fn=after,
    )
