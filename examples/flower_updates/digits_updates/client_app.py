"""The app's ClientApp. What private_update changes: one import and ``mods``."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedlsg.flower
from digits_updates.task import Net, load_data
from digits_updates.task import train as train_fn

private = fedlsg.flower.private_update(
    Net, epsilon=8.0, delta=1e-5, trust="secure", ledger=Path.home() / ".local/state/digits-updates"
)
app = ClientApp(mods=[private])


@app.train()
def train(msg: Message, context: Context):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = train_fn(net, loader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg
    )
