"""What a stranger writes."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

import fedlsg
from fedlsg.carriers import Dense


class Mine(fedlsg.Workload):
    """A workload of my own."""

    @property
    def summary(self) -> str:
        return "mine"


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


x, y = torch.randn(40, 4), torch.randint(0, 2, (40,))
u, v = torch.randn(20, 4), torch.arange(20) % 2


def workload() -> fedlsg.Workload:
    return Mine(model=build, train=(x, y), test=(u, v), loss=nn.CrossEntropyLoss())


def mine(
    *, mechanism: fedlsg.Mechanism, server: fedlsg.ServerOptimizer, width: int = 3
) -> fedlsg.Method:
    """A recipe of my own."""
    return fedlsg.Method(
        name="mine", carrier=Dense(), mask=fedlsg.Mask(), mechanism=mechanism, server=server
    )


def after(row: dict[str, object]) -> None:
    print(row["round"])


run = fedlsg.simulate(
    workload=workload,
    method="lsg",
    rank=2,
    learning_rate=0.5,
    clients=2,
    rounds=2,
    engine="local",
    callbacks=[after],
    batch_size=4,
    noise_multiplier=2.0,
    quiet=True,
)
print(
    run.summary["accuracy"],
    run.epsilon,
    [row["loss"] for row in run.rounds],
    run.bytes[0]["payload_bytes"],
)
run.plot().savefig("plot.pdf")
own: dict[str, Any] = {"width": 4}  # settings of a recipe of my own have no types
other = fedlsg.simulate(
    model=build,
    train=(x, y),
    test=(u, v),
    loss=nn.functional.cross_entropy,
    method=mine,
    clients=2,
    rounds=2,
    engine="local",
    noise_multiplier=2.0,
    quiet=True,
    num_classes=2,
    **own,
)
print(other.model, fedlsg.__version__)
model = build()
step = fedlsg.PrivateStep(
    model,
    nn.CrossEntropyLoss(),
    num_examples=len(x),
    method="lsg",
    rank=2,
    sample_rate=0.2,
    delta=1e-5,
    steps=3,
    noise_multiplier=2.0,
    learning_rate=0.1,
    momentum=0.9,
)
batches = step.batches((x, y))
for _ in range(step.steps):
    step.step(batches)
print(step.epsilon())
method: fedlsg.Method = fedlsg.recipe("lsg", rank=4, sparsity=0.3, noise_multiplier=1.2)
W: Tensor = torch.randn(8, 4)
L, R = fedlsg.decompose(W, 2, generator=torch.Generator().manual_seed(0))
print(
    fedlsg.reconstruct(*fedlsg.project(W, L, R), L, R).shape,
    functools.reduce(lambda a, b: a + b, [1, 2]),
)
loaded = fedlsg.load_run(run.directory)
assert loaded.summary["rounds"] == 2
