"""The record of a finished run: everything of summary.json."""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import torch

from fedlsg.accounting import Spread
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.client_rows import shared_rows
from fedlsg.simulations.server.evaluate import ByClient, Score
from fedlsg.simulations.settings.resolve import codec_summary, downlink_codec
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.atomic_files import Record
from fedlsg.simulations.storage.round_tables import BYTE_COLUMNS
from fedlsg.simulations.workloads.base.split import chance_of
from fedlsg.strategies.protocol.downlink import NOTHING
from fedlsg.user_code import shown

PACKAGES = ("fedlsg", "torch", "flwr", "ray", "numpy", "scipy", "prv-accountant", "dp-accounting")
"""Packages whose versions a summary names."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the recorder reports of a run that ended, as plain values.

    rounds: rounds that ended.
    updates: rounds that changed the model.
    score: of the final model on the test splits.
    spent: epsilon of the clients.
    bounds: every accountant's interval for the client with the largest epsilon.
    by_reader: the largest epsilon against each reader for whom there is one.
    rho: ``fedlsg.privacy.rho`` of the mean round; None for noise without a clip.
    sum_bits: bits of a value in secure sums; None without them.
    of_mean: what predicting the mean of the test targets reaches; None where that means nothing.
    by_client: accuracies on parts of the test split like the clients'; None if not measured.
    clients: the rows of clients.csv.
    zero_weights: weights that pruning set to zero.
    pruning: facts of the pruning round.
    downlink: state of the downlink.
    totals: sums of bytes and messages over all rounds.
    transfer_seconds: time that all messages would take, by link.
    rounds_by_client: rounds with an update of each client; None while nobody failed, or in large
        federations.
    wall_seconds: of the run, over all its processes.
    times: seconds by part of a round, and until the first round.
    simulated: time of the simulated clock, and clients by what became of them; None without a
        clock.
    stopped: why it ended early; None if it did not.
    diverged: whether its weights or loss became infinite or NaN.
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
    """Where the time went: ``outcome.times``, and "other": files and everything else."""
    other = max(outcome.wall_seconds - sum(outcome.times.values()), 0.0)
    return {name: round(seconds, 3) for name, seconds in {**outcome.times, "other": other}.items()}


def _chance(plan: Plan) -> dict[str, Any] | None:
    """The accuracy of guessing; None where there is no accuracy."""
    classes = plan.workload.num_classes
    return None if classes is None else asdict(chance_of(plan.workload.tests, classes))


def _privacy(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """Epsilon, and the assumptions that it rests on.

    "private": whether the mechanism is private, its noise secret, and epsilon finite.
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


def downlink_facts(settings: Settings, state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a summary about a downlink in this ``state``.

    name, codec: the setting ``downlink``, and the codec of its steps.
    repairs: whole models sent because a client had lost its replica, in all rounds of the run, also
        interrupted ones.
    interrupted: what was sent in rounds that were interrupted and run again by ``resume``. No other
        sum includes it.
    added_variance: variance that the codec adds, over the variance of the noise in the sum; from
        ``codec.summary()``, of codecs that add some.
    """
    interrupted = state.get("interrupted", NOTHING)
    if settings.downlink == "full":
        return {"name": "full", "interrupted": interrupted}
    repairs = sum(state["repairs"].values())
    codec = downlink_codec(settings)
    return {
        "name": settings.downlink,
        "codec": codec.name,
        "repairs": repairs,
        "interrupted": interrupted,
        **codec.summary(),
    }
