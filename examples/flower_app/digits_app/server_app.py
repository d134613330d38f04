"""The app's ServerApp: its own run config, and fedlsg's Strategy."""

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedlsg.flower
from digits_app.task import workload

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = fedlsg.flower.Strategy(
        workload,
        method="lsg",
        rank=4,
        sparsity=0.3,
        epsilon=config["epsilon"],
        out=config["out"] or None,
        sample_rate=0.5,
        learning_rate=0.5,
        momentum=0.9,
        clip_norm=0.5,
    )
    result = strategy.start(grid, num_rounds=config["num-server-rounds"])
    torch.save(result.arrays.to_torch_state_dict(), strategy.run.directory / "final_model.pt")
    print(strategy.run)
