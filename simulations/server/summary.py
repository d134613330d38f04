"""summary.json: what a run reached, what it cost, what its epsilon rests on, and where it ran."""

import math
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedlsg.accounting import AccountingError, compose
from fedlsg.gradients import trainable
from fedlsg.privacy import Ledger
from simulations.rundir.links import run_seconds
from simulations.rundir.messages import SUMS as BYTES
from simulations.rundir.steps import downlink_of
from simulations.server.hardware import hardware
from simulations.settings.codecs import codec_summary
from simulations.workloads.chance import chance_of

PACKAGES = ("fedlsg", "torch", "flwr", "ray", "numpy", "scipy", "prv-accountant", "dp-accounting")


def summarize(recorder: Any) -> dict[str, Any]:
    """Everything of summary.json."""
    plan, s, state = recorder.plan, recorder.plan.settings, recorder.state
    measured = recorder.evaluate()
    spent = recorder.spent(fast=False)
    dense = 4 * plan.dense_parameters
    return {
        "workload": s.workload,
        "model": s.model,
        "method": s.method,
        "seed": s.seed,
        "rounds": state.round,
        "empty_rounds": state.round - state.updates,
        "clients": len(plan.terms),
        "accuracy": measured.accuracy,
        "accuracy_by_split": dict(measured.by_split),
        "loss": measured.loss,
        "private": recorder.private and math.isfinite(spent.largest),
        "epsilon_max": spent.largest,
        "epsilon_median": spent.median,
        "delta": s.delta,
        "accountant": _accountants(recorder, recorder.ledgers[spent.worst]),
        "noise_multiplier": max(t.noise_multiplier for t in plan.terms),
        "pruning": _pruning(recorder),
        "trust": s.trust,
        "reproducible": s.reproducible,
        "codec": codec_summary(s, plan.method),
        "downlink": downlink_of(s, recorder.downlink),
        **{name: recorder.totals[name] for name in BYTES},
        "uplink_bytes_dense": dense * recorder.totals["uplink_messages"],
        "downlink_bytes_dense": dense * recorder.totals["downlink_messages"],
        "transfer_seconds": run_seconds(recorder.run.messages) if recorder.run.messages.exists() else {},
        "wall_seconds": round(recorder.seconds, 3),
        "engine": s.engine,
        "device": s.device,
        **asdict(plan.local.numbers),
        "chance": asdict(chance_of(plan.workload.tests, plan.workload.num_classes)),
        "hardware": hardware(s.device),
        "versions": versions(),
    }


def _pruning(recorder: Any) -> dict[str, Any] | None:
    prune = recorder.plan.method.prune
    if not prune.active:
        return None
    zeros = sum(int((p == 0).sum()) for p in trainable(recorder.state.model).values() if p.ndim >= 2)
    return {"kind": prune.kind, "rate": prune.rate, "zero_weights": zeros, **recorder.pruning}


def _accountants(recorder: Any, worst: Ledger) -> dict[str, Any]:
    """Both accountants' intervals for the client with the largest epsilon, and any failure's text."""
    if not recorder.plan.method.mechanism.private:
        return {}
    delta = recorder.plan.settings.delta
    assert delta is not None
    try:
        bound = compose(worst.events(), delta=delta)
    except AccountingError as error:
        return {"reported": "none", "client": worst.client, "intervals": {}, "failures": {"both": str(error)}}
    intervals = {name: asdict(interval) for name, interval in bound.intervals.items()}
    return {
        "reported": bound.accountant,
        "client": worst.client,
        "intervals": intervals,
        "failures": bound.failures,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
