"""The federated job that rounds are measured on: 100 clients x 50 images, 10 a round, batch 10, one
pass a round.

The environment variable JOB names other numbers: "100 20 100 20" is all of 100 clients with 20
images, one step each.

Images and labels are random: time does not depend on them. Importing this module registers the
workload ``job`` with its models; Ray's workers import it as part of the app, see
``benchmarks.rounds.job_apps``.
"""

import itertools
import os
import sys
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlsg.simulations import workloads
from fedlsg.simulations.workloads.base import LoadedWorkload, Request
from fedlsg.simulations.workloads.base.split import Split, rescale

CLIENTS, IMAGES, COHORT, BATCH = map(int, os.environ.get("JOB", "100 50 10 10").split())
SIDE = 32

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "clients": CLIENTS,
        "clients_per_round": COHORT,
        "local_steps": IMAGES // BATCH,
        "sample_rate": BATCH / IMAGES,
        "rounds": 30,
        "local_learning_rate": 0.01,
        "learning_rate": 0.01,
        "momentum": 0.0,
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "delta": 1e-5,
        "rank": 8,
        "sparsity": 0.5,
        "partition": "iid",
    }
)


def lenet() -> nn.Module:
    """LeNet-5 for 32 x 32 colour images: 62,006 parameters."""
    return _model(_features(6, 16), 16 * 25, 120, 84)


def wide() -> nn.Module:
    """The same with more channels and units: 1.6 M parameters."""
    return _model(_features(32, 64), 64 * 25, 900, 128)


def large() -> nn.Module:
    """Four wide layers behind a small image: 22 M parameters and little arithmetic."""
    return _model(nn.Identity(), 3 * SIDE * SIDE, 4096, 2048, 512)


def mlp(units: int = 20) -> nn.Module:
    """One hidden layer: 61,670 parameters."""
    return _model(nn.Identity(), 3 * SIDE * SIDE, units)


MODELS = MappingProxyType(
    # 1.6 M parameters
    {"lenet": lenet, "wide": wide, "large": large, "mlp": mlp, "mlp-wide": partial(mlp, 512)}
)
METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType({})


def load(request: Request) -> LoadedWorkload:
    """The workload; it has as many images as ``options.train_rows`` says, 5,000 by default."""
    count = request.options.train_rows or CLIENTS * IMAGES
    draw = np.random.default_rng(0)
    prepare = partial(rescale, offset=torch.tensor(127.5), scale=torch.tensor(1 / 64))

    def split(count: int) -> Split:
        images = draw.integers(256, size=(count, 3, SIDE, SIDE), dtype=np.uint8)
        return Split(
            inputs=images, labels=torch.from_numpy(draw.integers(10, size=count)), prepare=prepare
        )

    return LoadedWorkload(
        name="job",
        train=split(count),
        test=split(100),
        num_classes=10,
        models=MODELS,
        defaults=DEFAULTS,
    )


def settings(model: str, method: str, **given: Any) -> dict[str, Any]:
    """Settings of a run of the job."""
    private = {} if method == "sgd" else {"noise_multiplier": 2.0}
    return {
        "workload": "job",
        "model": model,
        "method": method,
        "evaluate_every": 10**6,
        **private,
        **given,
    }


def _features(first: int, second: int) -> nn.Module:
    layers = [
        nn.Conv2d(3, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.MaxPool2d(2))


def _model(features: nn.Module, *widths: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    body = nn.Sequential(*layers)
    return nn.Sequential(
        OrderedDict(features=features, body=body, classifier=nn.Linear(widths[-1], 10))
    )


workloads._REGISTRY = MappingProxyType({**workloads._REGISTRY, "job": sys.modules[__name__]})
