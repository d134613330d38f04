"""The record of a finished run: summary.json, and the final model as plain tensors."""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.accounting import Spread
from fedlsg.carriers import adapted_layers
from fedlsg.gradients import trainable
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.simulations.models.encoder import describe
from fedlsg.simulations.models.plain_torch import layers_of, scale_of
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.start_weights import rows_behind, starts_of
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.client_rows import shared_rows
from fedlsg.simulations.server.evaluate import ByClient, Score
from fedlsg.simulations.settings.resolve import codec_summary, downlink_codec
from fedlsg.simulations.settings.settings import Settings, values_of
from fedlsg.simulations.storage.atomic_files import Record
from fedlsg.simulations.storage.round_tables import BYTE_COLUMNS
from fedlsg.simulations.workloads import Options
from fedlsg.simulations.workloads.base.split import chance_of
from fedlsg.state import ServerState
from fedlsg.strategies.protocol.downlink import NOTHING
from fedlsg.user_code import DATA, shown
from fedlsg.user_code.digest import version

PACKAGES = ("fedlsg", "torch", "flwr", "ray", "numpy", "scipy", "prv-accountant", "dp-accounting")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the recorder reports of a run that ended, as plain values.

    updates: rounds that changed the model.
    bounds: every accountant's interval for the client with the largest epsilon.
    by_reader: the largest epsilon against each reader for whom there is one.
    rho: noise over clip norm.
    sum_bits: of a value in secure sums.
    downlink: state of the downlink.
    of_mean: what predicting the mean of the test targets reaches; None where that means nothing.
    by_client: accuracies on parts of the test split like the clients'.
    clients: the rows of clients.csv.
    rounds_by_client: rounds with an update of each client; None while nobody failed.
    totals: sums of bytes and messages.
    simulated: time of the simulated clock, and clients by what became of them; None without a
        clock.
    stopped: why it ended early.
    """

    rounds: int
    updates: int
    score: Score
    spent: Spread
    bounds: Mapping[str, Any]
    by_reader: Mapping[str, float]
    rho: float | None
    sum_bits: int | None
    of_mean: Score | None
    by_client: ByClient | None
    clients: Sequence[Record] = ()
    zero_weights: int
    pruning: Mapping[str, Any]
    downlink: Mapping[str, Any]
    totals: Mapping[str, int]
    transfer_seconds: Mapping[str, float]
    rounds_by_client: Mapping[str, int] | None = None
    wall_seconds: float
    times: Mapping[str, float]
    simulated: Mapping[str, Any] | None
    stopped: str | None
    diverged: bool


def summarize(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """Everything of summary.json, in its order."""
    settings = plan.settings
    dense = 4 * plan.initial.dense_parameters
    return {
        "workload": shown(settings.workload),
        "model": settings.model,
        "method": shown(settings.method),
        **({"pretrained_sha256": settings.pretrained_sha256} if settings.pretrained_sha256 else {}),
        **({"start_from": Path(settings.start_from).name} if settings.start_from else {}),
        **({"fresh_data": True} if settings.fresh_data else {}),
        "seed": settings.seed,
        "rounds": outcome.rounds,
        "empty_rounds": outcome.rounds - outcome.updates,
        "clients": len(plan.terms),
        **(
            {}
            if outcome.rounds_by_client is None
            else {"rounds_by_client": dict(outcome.rounds_by_client)}
        ),
        "accuracy": outcome.score.accuracy,
        "accuracy_by_split": dict(outcome.score.by_split),
        **({} if settings.tests_private_rows else _by_class(outcome.score)),
        **({"personal": plan.method.personal} if plan.method.personal else {}),
        **({} if outcome.by_client is None else {"accuracy_by_client": outcome.by_client.facts}),
        **({"by_client": shared} if (shared := shared_rows(plan, outcome.clients)) else {}),
        "loss": outcome.score.loss,
        **({"features": dict(plan.workload.features)} if plan.workload.features else {}),
        **({"normalised": dict(plan.workload.normalised)} if plan.workload.normalised else {}),
        **({"data": dict(plan.workload.data)} if plan.workload.data else {}),
        **(
            {"probe_source": plan.initial.probe_source.name}
            if plan.method.carrier.source is not None
            else {}
        ),
        **({"metrics": dict(outcome.score.metrics)} if outcome.score.metrics else {}),
        **({} if outcome.of_mean is None else {"predict_the_mean": _constant(outcome.of_mean)}),
        **_privacy(plan, outcome),
        "codec": codec_summary(settings, plan.method)
        | ({} if outcome.sum_bits is None else {"bits": outcome.sum_bits}),
        "downlink": downlink_facts(settings, outcome.downlink),
        **{name: outcome.totals[name] for name in BYTE_COLUMNS},
        "uplink_bytes_dense": dense * outcome.totals["uplink_messages"],
        "downlink_bytes_dense": dense * outcome.totals["downlink_messages"],
        "transfer_seconds": dict(outcome.transfer_seconds),
        "wall_seconds": round(outcome.wall_seconds, 3),
        "seconds": _seconds(outcome),
        **({} if outcome.simulated is None else {"simulated": dict(outcome.simulated)}),
        "engine": settings.engine,
        "device": plan.device,
        **asdict(plan.local.precision),
        "chance": _chance(plan),
        "hardware": hardware(plan.device),
        "versions": versions(),
        **({"own_code": dict(plan.own_code)} if plan.own_code else {}),
        "stopped": outcome.stopped,
        "diverged": outcome.diverged,
    }


def _constant(of_mean: Score) -> dict[str, Any]:
    """Loss and metrics of a model that predicts the mean of the test targets."""
    return {"loss": of_mean.loss, **({"metrics": dict(of_mean.metrics)} if of_mean.metrics else {})}


def _by_class(score: Score) -> dict[str, Any]:
    """Test rows of each class and its recall, the share of them that are right; None without rows.

    Not of private rows: counts of their classes are in it.
    """
    counts = score.by_class
    recalls = [{"rows": rows, "recall": right / rows if rows else None} for rows, right in counts]
    return {"recall_by_class": recalls} if recalls else {}


def _seconds(outcome: Outcome) -> dict[str, float]:
    """Where the time went: until the first round, by part of a round (``Times``), and files and all
    else.
    """
    known = {name: round(seconds, 3) for name, seconds in outcome.times.items()}
    return {
        **known,
        "other": round(max(outcome.wall_seconds - sum(outcome.times.values()), 0.0), 3),
    }


def _chance(plan: Plan) -> dict[str, Any] | None:
    """The accuracy of guessing; None where there is no accuracy."""
    classes = plan.workload.num_classes
    return None if classes is None else asdict(chance_of(plan.workload.tests, classes))


def _privacy(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What epsilon is and rests on. "private": a private mechanism, secret noise and a finite
    epsilon.
    """
    settings, prune = plan.settings, plan.method.prune
    pruning = {
        "kind": prune.kind,
        "rate": prune.rate,
        "zero_weights": outcome.zero_weights,
        **outcome.pruning,
    }
    return {
        "private": plan.method.mechanism.private
        and not settings.reproducible
        and math.isfinite(outcome.spent.largest),
        "epsilon_max": outcome.spent.largest,
        "epsilon_median": outcome.spent.median,
        "epsilon_by_reader": dict(outcome.by_reader),
        "delta": settings.delta,
        "accountant": dict(outcome.bounds),
        "noise_multiplier": plan.terms[outcome.spent.worst].noise_multiplier,  # of epsilon_max
        "rho": outcome.rho,
        "pruning": pruning if prune.active else None,
        "unit": settings.unit,
        "adjacency": "zero-out" if settings.sampling == "shuffle" else "add/remove",
        "trust": settings.trust,
        "secure_sum": None if plan.sums is None else sum_facts(plan.sums),
        "reproducible": settings.reproducible,
        "isolation": plan.local.isolation,
    }


def sum_facts(sums: SumTerms) -> dict[str, int]:
    """Whom the epsilon of secure sums relies on: K, m, t and h = m - t."""
    return {
        "clients": sums.clients,
        "min_survivors": sums.min_survivors,
        "colluders": sums.colluders,
        "contributors": sums.contributors,
    }


def hardware(device: str) -> dict[str, str | int]:
    """Processor, cores that this process may use, system, and the graphics card if the run used
    one.
    """
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    facts: dict[str, str | int] = {
        "processor": _processor(),
        "cores": usable,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    version_of = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            version_of[package] = installed(package)
        except PackageNotFoundError:
            version_of[package] = "not installed"
    return version_of


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next((name for name in names if name), platform.processor() or platform.machine())


MODEL_FORMAT = 1
"""Format of config.json, which is next to the tensors of a final model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalModel:
    """``tensors``: parameters and buffers by their names in the module. ``facts``: everything of
    config.json.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def final_model(base: Base, state: ServerState) -> FinalModel:
    """The model that is evaluated: with ema, the average of the weights. LoRA's factors are as they
    were trained.

    The tensors are copies: the state may change afterwards.
    """
    with state.evaluated() as model:
        tensors = {
            name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()
        }
    return FinalModel(tensors=tensors, facts=facts_of(base, state))


def facts_of(base: Base, state: ServerState) -> dict[str, Any]:
    """What a reader needs to build the module again, and to know what was trained."""
    settings, model = base.settings, state.model
    options = {
        f.name: getattr(settings, f.name)
        for f in fields(Options)
        if f.name not in ("model", "data_root")
    }
    return {
        "format": MODEL_FORMAT,
        "fedlsg": version(),
        "workload": shown(settings.workload),
        "model": settings.model,
        "method": shown(settings.method),
        "seed": settings.seed,
        "round": state.round,
        "averaged": state.average is not None,
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        **layers_of(model),
        "inputs": scale_of(base.workload.test.prepare),
        "options": {name: value for name, value in options.items() if value is not None},
        **({"data": dict(base.workload.data)} if base.workload.data else {}),
        "public_data": public_data_of(base),
        # kept here because the weights that the run started from may be moved or deleted later
        "rows_behind": sorted(set().union(*map(rows_behind, starts_of(settings).values()))),
        "trained": list(trainable(model)),
        "lora": lora_facts(model, base.method.carrier.scale),
        "transformers": _with_labels(describe(model), base.workload.data.get("classes", ())),
    }


def _with_labels(described: dict[str, Any] | None, classes: Sequence[str]) -> dict[str, Any] | None:
    """What ``describe`` returned, with the names of the classes as transformers keeps them."""
    if described is None or not classes:
        return described
    names = {
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }
    return {**described, "config": {**described["config"], **names}}


def public_data_of(base: Base) -> list[str]:
    """Data that the run read as public ones, to train on or to probe the model with: "data:" and a
    name each.
    """
    carrier = base.method.carrier
    named = [base.settings.public_rows, carrier.source]
    return [shown(one) for one in named if one is not None and one.startswith(DATA)]


def lora_facts(model: nn.Module, scale: float) -> dict[str, Any] | None:
    """Adapted layers, and s of W_0 + s B A; ``merges``: whether that weight alone gives the same
    outputs.
    """
    layers = adapted_layers(model)
    if not layers:
        return None
    linear = all(type(layer.base) in (nn.Linear, nn.Conv2d) for layer in layers.values())
    return {"scale": scale, "layers": list(layers), "merges": linear}


RATES = ("learning_rate", "classifier_learning_rate", "norms_learning_rate", "local_learning_rate")


def explain(error: Exception, settings: Settings) -> str:
    """One line: the round, what is not finite, and the likely cause: the largest learning rate."""
    rates = {name: value for name, value in values_of(settings).items() if name in RATES}
    if settings.local_steps == 1:
        rates.pop("local_learning_rate", None)  # only learning_rate scales a single step
    likely = max(rates, key=lambda name: rates[name])
    return (
        f"{error}: {likely}={rates[likely]:g} is likely too large, start a new run with a smaller "
        "one"
    )


def refuse_diverged(summary: Mapping[str, Any]) -> None:
    """Raise RuntimeError for a run that diverged: its weights are those of an earlier round."""
    if summary["diverged"]:
        raise RuntimeError(str(summary["stopped"]))


def downlink_facts(settings: Settings, state: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary says of a downlink that is in this ``state``.

    repairs: whole models sent because a client had lost its replica, in all rounds of the run, also
        interrupted ones.
    interrupted: what was sent in rounds that were interrupted and run again by ``resume``. No other
        sum includes it.
    added_variance: in units of the variance of the noise in the sum. Of codecs that have it, in
        their ``summary()``.
    """
    interrupted = state.get("interrupted", NOTHING)
    if settings.downlink == "full":
        return {"name": "full", "interrupted": interrupted}
    repairs = sum(state["repairs"].values())
    codec = downlink_codec(settings)
    facts = {
        "name": settings.downlink,
        "codec": codec.name,
        "repairs": repairs,
        "interrupted": interrupted,
    }
    return facts | codec.summary()
