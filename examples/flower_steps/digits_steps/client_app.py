"""The app's ClientApp: its loop, whose steps are private ones, within the limits of the node; and a
reply that says what they spent.
"""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

import fedlsg
import fedlsg.flower
from digits_steps.task import Net, load_data

# The server chooses noise and number of steps. This node takes them within limits of its own.
node = fedlsg.flower.PrivateNode(
    epsilon=8.0,
    delta=1e-5,
    least_noise_multiplier=0.5,
    ledger=Path.home() / ".local/state/digits-steps",
)
app = ClientApp(mods=[node])


@app.train()
def train(msg: Message, context: Context):
    net, client = Net(), context.node_config["partition-id"]
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data, config = load_data(client, context.node_config["num-partitions"]), msg.content["config"]
    step = fedlsg.PrivateStep(
        net,
        nn.CrossEntropyLoss(),
        num_examples=len(data[0]),
        sample_rate=0.3,
        steps=config["local-steps"],
        noise_multiplier=config["noise-multiplier"],
        delta=1e-5,
        clip_norm=0.5,
        method="dpsgd",
        learning_rate=config["lr"],
        ledger=node.ledger(context),
    )
    batches = step.batches(data)
    for _ in range(config["local-steps"]):
        step.step(batches)
    return fedlsg.flower.reply(step, msg)
