"""Runs without privacy against FedAvg (McMahan et al. 2017, Alg. 1) and FedProx (Li et al. 2020,
Eq. 2), written here once more in plain PyTorch: torch.optim.SGD and its schedulers on each client.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import fedlsg
from benchmarks.flower.flower_app import CLIENT_APP, SERVER_APP, write_project
from benchmarks.flower.flower_app import simulate as flwr_run
from fedlsg.simulations.storage.run_directory import RunDir
from tests.places import REPOSITORY

RATE, STEPS, ROUNDS, ROWS = 0.2, 3, 4, 80
SIZES = {
    "equal": (20, 20, 20, 20),
    "unequal": (10, 20, 50),
    "one is large": (5, 5, 5, 5, 60),
    "one row": (1, 30, 49),
    "two": (8, 72),
    "many sizes": (3, 5, 7, 9, 11, 13, 15, 17),
}
FEW = [name for name in SIZES if name in ("unequal", "one is large")]
FORMS = [pytest.param(SIZES[n], id=n, marks=[] if n in FEW else pytest.mark.slow) for n in SIZES]
NEAR = 2e-6
"""Of the way that the weights go: rounding of float32."""


def parts(sizes: Sequence[int]) -> list[list[int]]:
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


def rows() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (120,), generator=draw)
    x = torch.randn(120, 4, generator=draw)
    x[:, 0] += 3 * y
    return x, y


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def constant(update: int) -> float:
    return 1.0


def fedavg(
    sizes: Sequence[int],
    *,
    momentum: float = 0.0,
    proximal: float = 0.0,
    share: Callable[[int], float] = constant,
    local_rate: float = RATE,
    weights: Sequence[float] | None = None,
    chosen: Callable[[int], Sequence[int]] | None = None,
) -> nn.Module:
    """The server's weights in float64; ``chosen``: the clients of a round, all by default."""
    x, y = rows()
    model, all_parts = net().double(), parts(sizes)
    for round in range(ROUNDS):
        clients = range(len(sizes)) if chosen is None else chosen(round)
        counts = [sizes[k] if weights is None else weights[k] for k in clients]
        start = copy.deepcopy(model)
        average = [torch.zeros_like(p) for p in model.parameters()]
        for k, count in zip(clients, counts, strict=True):
            model = copy.deepcopy(start)
            optimizer = torch.optim.SGD(
                model.parameters(), lr=local_rate * share(round), momentum=momentum
            )
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[all_parts[k]].double()), y[all_parts[k]])
                for p, first in zip(model.parameters(), start.parameters(), strict=True):
                    loss = loss + proximal / 2 * (p - first.detach()).square().sum()
                loss.backward()
                optimizer.step()
            for mean, p in zip(average, model.parameters(), strict=True):
                mean += p.detach() * count / sum(counts)
        for p, mean in zip(model.parameters(), average, strict=True):
            p.data = mean
    return model


def off(ours: nn.Module, theirs: nn.Module) -> float:
    """How far the weights are apart, as a share of the way that ``theirs`` went."""
    ours_, theirs_, first = (
        torch.cat([p.detach().double().flatten() for p in model.parameters()])
        for model in (ours, theirs, net())
    )
    return float((ours_ - theirs_).norm() / (theirs_ - first).norm())


def simulate(sizes: Sequence[int], out: object, **given: object) -> nn.Module:
    x, y = rows()
    usual: dict[str, object] = {
        "method": "sgd",
        "epsilon": None,
        "sample_rate": 1.0,
        "rounds": ROUNDS,
        "local_steps": STEPS,
        "learning_rate": RATE,
        "partition": parts(sizes),
        "engine": "local",
    }
    run = fedlsg.simulate(
        model=net,
        train=(x[:ROWS], y[:ROWS]),
        test=(x[ROWS:], y[ROWS:]),
        loss=nn.CrossEntropyLoss(),
        quiet=True,
        out=out,
        **usual | given,
    )
    return run.model


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_full_batches_of_all_clients_are_fedavg(sizes, tmp_path):
    assert off(simulate(sizes, tmp_path), fedavg(sizes)) < NEAR


@pytest.mark.parametrize("sizes", FORMS)
def test_with_momentum_and_proximal_term_they_are_fedprox(sizes, tmp_path):
    how = {"momentum": 0.9, "proximal": 0.5}
    found = simulate(sizes, tmp_path, local_momentum=0.9, proximal=0.5)
    assert off(found, fedavg(sizes, **how)) < NEAR
    assert off(found, fedavg(sizes, momentum=0.9)) > 1e-3  # the comparison sees the term


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
@pytest.mark.parametrize("sizes", FORMS)
def test_a_batch_size_that_holds_all_rows_is_a_full_batch(sizes, sampling, tmp_path):
    found = simulate(sizes, tmp_path, sample_rate=None, batch_size=100, sampling=sampling)
    assert off(found, fedavg(sizes)) < NEAR


def linear(update: int, last: float = 0.0) -> float:
    return 1 + (last - 1) * update / ROUNDS


def cosine(update: int) -> float:
    return (1 + float(torch.cos(torch.tensor(torch.pi * update / ROUNDS)))) / 2


SCHEDULES: dict[str, tuple[dict[str, object], Callable[[int], float]]] = {
    "linear": ({"schedule": "linear"}, linear),
    "rising": ({"schedule": "linear", "final_learning_rate": 0.4}, partial(linear, last=2.0)),
    "cosine": ({"schedule": "cosine"}, cosine),
    "exponential": (
        {"schedule": "exponential", "final_learning_rate": 0.02},
        lambda update: 0.1 ** (update / ROUNDS),
    ),
    "step": (
        {"schedule": "step", "final_learning_rate": 0.02},
        lambda update: 0.1 ** (sum(update / ROUNDS >= drop for drop in (0.3, 0.6, 0.8)) / 3),
    ),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("given", [{}, {"local_learning_rate": RATE}], ids=["default", "given"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_local_steps_follow_the_schedule(schedule, given, tmp_path):
    settings, share = SCHEDULES[schedule]
    found = simulate(SIZES["unequal"], tmp_path, **settings, **given, local_momentum=0.5)
    assert off(found, fedavg(SIZES["unequal"], share=share, momentum=0.5)) < NEAR
    assert off(found, fedavg(SIZES["unequal"], momentum=0.5)) > 1e-3


def test_equal_weights_are_asked_for(tmp_path):
    sizes = SIZES["unequal"]
    found = simulate(sizes, tmp_path, weighting="clients")
    assert off(found, fedavg(sizes, weights=[1.0] * len(sizes))) < NEAR


@pytest.mark.parametrize("per_round", [1, 2])
def test_rounds_of_some_clients_average_over_these(per_round, tmp_path):
    sizes = SIZES["unequal"]
    found = simulate(sizes, tmp_path, clients_per_round=per_round, selection="turns")
    rounds = RunDir(tmp_path).read_rounds()
    asked = [[int(client) for client in row["answered"].split()] for row in rounds]
    assert {len(clients) for clients in asked} == {per_round}
    assert len(asked) == ROUNDS
    assert off(found, fedavg(sizes, chosen=asked.__getitem__)) < NEAR


@pytest.mark.parametrize("engine", [pytest.param("ray", marks=pytest.mark.ray), "local"])
def test_engines_agree(engine, tmp_path, request):
    if engine == "ray":  # that of the other tests, whose idle workers have all places
        request.getfixturevalue("on_ray")
    sizes, how = SIZES["one is large"], {"schedule": "cosine", "proximal": 0.5}
    found = simulate(sizes, tmp_path, engine=engine, local_momentum=0.9, **how)
    assert off(found, fedavg(sizes, momentum=0.9, proximal=0.5, share=cosine)) < NEAR


def test_a_client_of_many_rows_does_not_diverge(tmp_path):
    """Divided by the mean expected batch, its steps were 4.1 times too long."""
    sizes = SIZES["one is large"]
    found = simulate(sizes, tmp_path, learning_rate=0.3)
    assert off(found, fedavg(sizes, local_rate=0.3)) < NEAR


def test_a_schedule_that_rises_until_local_steps_diverge_is_refused(tmp_path):
    given = {"proximal": 4.0, "schedule": "linear", "final_learning_rate": 2.0}
    with pytest.raises(ValueError, match="above it local steps diverge"):
        simulate(SIZES["unequal"], tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def unequal() -> fedlsg.Workload:
    """The rows and clients of "unequal", for the processes of ``flwr run``."""
    x, y = rows()
    return fedlsg.Workload(
        model=net,
        train=(x[:ROWS], y[:ROWS]),
        test=(x[ROWS:], y[ROWS:]),
        loss=nn.CrossEntropyLoss(),
        partition=parts(SIZES["unequal"]),
    )


@pytest.mark.slow
@pytest.mark.ray
def test_flwr_run_is_fedprox(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    config: dict[str, str | int | float | bool] = {
        "workload": f"{Path(__file__).resolve()}:unequal",
        "method": "sgd",
        "sample-rate": 1.0,
        "rounds": ROUNDS,
        "local-steps": STEPS,
        "learning-rate": RATE,
        "local-momentum": 0.9,
        "proximal": 0.5,
        "run-dir": str(tmp_path / "run"),
    }
    (tmp_path / "run").mkdir()
    app = write_project(tmp_path / "app", config, SERVER_APP, CLIENT_APP)
    status = flwr_run(app, tmp_path / "flower", nodes=len(SIZES["unequal"]))
    assert status == "finished:completed", (tmp_path / "flower" / "flower.log").read_text()[-3000:]
    model = net()
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert off(model, fedavg(SIZES["unequal"], momentum=0.9, proximal=0.5)) < NEAR
    assert off(model, fedavg(SIZES["unequal"], momentum=0.9)) > 1e-3
