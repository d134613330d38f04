"""PrivateStep against Opacus on the same model and data: accuracy at the same epsilon, and seconds of one step.

    python -m benchmarks.private_step_opacus --json FILE [--subjects digits,cifar10] [--data-dir DIR] [--seeds 12,3]

Both train the same initial weights with the same Poisson rate, steps, clip norm, noise multiplier, learning rate and
momentum (torch's SGD). Opacus is set up as its users do it, by ``PrivacyEngine.make_private``, hooks or ghost clipping,
with its own Poisson data loader. In the timing its batches are indexed from tensors as those of PrivateStep are: its
data loader, which collates example by example, is not timed. Noise comes from torch's generator in Opacus and from
ChaCha20 in PrivateStep, whose time also has the charge that is synced to the ledger's file.
Needs the package opacus.
"""

import json
import math
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.pairs import interleave, numbers, parser, summary, table, write
from fedlsg import PrivateStep
from fedlsg.accounting import calibrate_noise_multiplier
from simulations import workloads
from simulations.workloads import Options, silent

METHODS: dict[str, dict[str, Any]] = {"dpsgd": {}, "lsg": {"rank": 8}, "rgp": {"rank": 8}}


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A data set with a model and the settings that all arms share."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    build: Callable[[], nn.Module]
    batch: int
    epochs: int
    clip_norm: float
    learning_rate: float
    momentum: float
    epsilon: float
    delta: float = 1e-5

    @property
    def size(self) -> int:
        return len(self.train[1])

    @property
    def steps(self) -> int:
        return self.epochs * self.size // self.batch

    def sigma(self) -> float:
        """The noise multiplier of all arms."""
        rate = self.batch / self.size
        return calibrate_noise_multiplier(epsilon=self.epsilon, delta=self.delta, sample_rate=rate, steps=self.steps)

    def sgd(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)

    def accuracy(self, model: nn.Module) -> float:
        """Percent of the test rows."""
        model.eval()
        with torch.no_grad():
            found = torch.cat([model(x).argmax(1) for x in self.test[0].split(1000)])
        return 100 * float((found == self.test[1]).float().mean())


def rows_of(name: str, data_dir: Path | None, train: int, test: int) -> tuple[Any, Any]:
    """Rows of a workload as tensors: the first ones of its training and test split."""
    loaded = workloads.load(name, data_dir=data_dir, options=Options(), progress=silent)
    return loaded.train.batch(torch.arange(train)), loaded.test.batch(torch.arange(test))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def cnn(width: int = 16) -> nn.Module:
    """Four convolutions with one-group norms: 33 thousand parameters, 111 thousand at width 32."""
    layers: list[nn.Module] = []
    for into, out in ((3, width), (width, 2 * width), (2 * width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(1, out), nn.Tanh(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * width, 64), nn.Tanh(), nn.Linear(64, 10))


def digits(data_dir: Path | None) -> Task:
    (x, y), test = rows_of("digits", None, 1400, 350)
    test = (test[0].flatten(1), test[1])
    return Task(
        train=(x.flatten(1), y), test=test, build=mlp, batch=280, epochs=24, clip_norm=0.5, learning_rate=0.3,
        momentum=0.9, epsilon=3.0,
    )  # fmt: skip


def cifar10(data_dir: Path | None, *, rows: int = 10_000, width: int = 16) -> Task:
    train, test = rows_of("cifar10", data_dir, rows, 10_000)
    return Task(
        train=train, test=test, build=partial(cnn, width), batch=rows // 40, epochs=3, clip_norm=0.5,
        learning_rate=1.0, momentum=0.0, epsilon=3.0,
    )  # fmt: skip


TASKS: dict[str, Callable[[Path | None], Task]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar10-wide": partial(cifar10, rows=20_000, width=32),
}


def ours(task: Task, method: str, seed: int, sigma: float) -> tuple[PrivateStep, Callable[[], None]]:
    """A private step of a method, and one step of it."""
    torch.manual_seed(seed)
    settings = {name: min(value, 4) if task.build is mlp else value for name, value in METHODS[method].items()}
    step = PrivateStep(
        task.build(), nn.CrossEntropyLoss(), num_examples=task.size, sample_rate=task.batch / task.size,
        steps=task.steps, noise_multiplier=sigma, delta=task.delta, method=method, clip_norm=task.clip_norm,
        optimizer=task.sgd, seed=seed, **settings,
    )  # fmt: skip
    batches = step.batches(task.train)
    return step, lambda: step.step(batches)


def opacus(task: Task, seed: int, sigma: float, *, ghost: bool = False) -> tuple[Any, nn.Module, Any, Any, Any]:
    """Opacus' engine, model, optimizer, loss and loader."""
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    model, loss = task.build(), nn.CrossEntropyLoss()
    engine = PrivacyEngine(accountant="prv")
    made = engine.make_private(
        module=model, optimizer=task.sgd(model.parameters()), criterion=loss, noise_multiplier=sigma,
        data_loader=DataLoader(TensorDataset(*task.train), batch_size=task.batch), max_grad_norm=task.clip_norm,
        grad_sample_mode="ghost" if ghost else "hooks",
    )  # fmt: skip
    private, optimizer = made[0], made[1]
    return engine, private, optimizer, made[2] if ghost else loss, made[-1]


def opacus_step(private: nn.Module, optimizer: Any, loss: Any, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    loss(private(x), y).backward()
    optimizer.step()


def opacus_run(task: Task, seed: int, sigma: float) -> tuple[float, float]:
    """Accuracy and epsilon of a whole run with its own data loader."""
    engine, private, optimizer, loss, loader = opacus(task, seed, sigma)
    assert math.isclose(loader.sample_rate, task.batch / task.size)
    for _ in range(task.epochs):
        for x, y in loader:
            opacus_step(private, optimizer, loss, x, y)
    return task.accuracy(private), engine.get_epsilon(task.delta)


def our_run(task: Task, method: str, seed: int, sigma: float) -> tuple[float, float]:
    step, once = ours(task, method, seed, sigma)
    for _ in range(task.steps):
        once()
    return task.accuracy(step.model), step.epsilon()


def accuracies(task: Task, seeds: int, sigma: float) -> dict[str, Any]:
    """Accuracy of every arm and seed, and of each arm the difference to Opacus, paired by seed."""
    found: dict[str, Any] = {}
    for seed in range(seeds):
        for arm in ("opacus", *METHODS):
            started = time.monotonic()
            run = opacus_run(task, seed, sigma) if arm == "opacus" else our_run(task, arm, seed, sigma)
            found.setdefault(arm, {"accuracy": [], "epsilon": run[1]})["accuracy"].append(run[0])
            print(
                f"{arm} seed {seed}: {run[0]:.2f} %, epsilon {run[1]:.4f}, {time.monotonic() - started:.0f} s",
                flush=True,
            )
    for arm, values in found.items():
        apart = [a - b for a, b in zip(values["accuracy"], found["opacus"]["accuracy"], strict=True)]
        values["mean"], values["sd"] = statistics.mean(values["accuracy"]), statistics.stdev(values["accuracy"])
        if arm != "opacus":
            values["over opacus"] = statistics.mean(apart)
            values["paired standard error"] = statistics.stdev(apart) / math.sqrt(len(apart))
    return found


def agreement(task: Task) -> float:
    """Largest relative difference, over the parameters, of a clipped mean gradient without noise, of one batch."""
    torch.manual_seed(0)
    x, y = (part[: task.batch] for part in task.train)
    step = PrivateStep(
        task.build(), nn.CrossEntropyLoss(), num_examples=len(y), sample_rate=1.0, steps=1, method="dpsgd",
        mechanism="clip-only", clip_norm=task.clip_norm, optimizer=task.sgd,
    )  # fmt: skip
    whole = replace(task, train=(x, y), batch=len(y))
    _, private, optimizer, loss, _ = opacus(whole, 0, 0.0)
    private.load_state_dict({f"_module.{name}": value for name, value in step.model.state_dict().items()})
    step.step(step.batches((x, y)))
    opacus_step(private, optimizer, loss, x, y)
    pairs = zip(step.model.parameters(), private.parameters(), strict=True)
    return max(float((p.grad - q.grad).norm() / q.grad.norm()) for p, q in pairs)  # type: ignore[operator, union-attr]


def times(task: Task, sigma: float, pairs: int, warmup: int) -> dict[str, Any]:
    """Seconds of one step of every arm on Poisson batches indexed from tensors, interleaved."""
    arms: dict[str, Callable[[], object]] = {}
    for name, ghost in (("opacus hooks", False), ("opacus ghost", True)):
        _, private, optimizer, loss, _ = opacus(task, 0, sigma, ghost=ghost)

        def step(private: Any = private, optimizer: Any = optimizer, loss: Any = loss) -> None:
            rows = (torch.rand(task.size) < task.batch / task.size).nonzero().squeeze(1)
            opacus_step(private, optimizer, loss, task.train[0][rows], task.train[1][rows])

        arms[name] = step
    arms |= {method: ours(task, method, 0, sigma)[1] for method in METHODS}
    return summary(interleave(arms, pairs=pairs, warmup=warmup), ("opacus hooks", "opacus ghost"))


def options() -> ArgumentParser:
    given = parser(__doc__)
    given.add_argument("--subjects", default="digits,cifar10", help="which data sets, with commas")
    given.add_argument("--data-dir", type=Path, default=None, help="a local mirror of the hub's data sets")
    given.add_argument("--seeds", type=numbers, default=(12, 3), metavar="12,3", help="runs of an arm on each data set")
    return given


def main() -> None:
    given = options().parse_args()
    torch.set_num_threads(given.threads[0])
    results: dict[str, Any] = {"threads": given.threads[0], "pairs": given.pairs, "seeds": given.seeds}
    for name, seeds in zip(given.subjects.split(","), given.seeds, strict=False):
        task = TASKS[name](given.data_dir)
        sigma = task.sigma()
        results[name] = {
            "examples": task.size, "batch": task.batch, "steps": task.steps, "noise_multiplier": sigma,
            "parameters": sum(p.numel() for p in task.build().parameters()), "clip_norm": task.clip_norm,
            "learning_rate": task.learning_rate, "momentum": task.momentum, "delta": task.delta,
        }  # fmt: skip
        results[name]["gradient without noise differs by"] = agreement(task)
        print(json.dumps({name: results[name]}), flush=True)
        results[name]["time"] = times(task, sigma, given.pairs, given.warmup)
        print(table(results[name]["time"], "opacus hooks"), flush=True)
        if seeds:
            results[name]["accuracy"] = accuracies(task, seeds, sigma)
        write(given.json, results)


if __name__ == "__main__":
    main()
