"""The contract of a recipe in whole runs: the ledger is the mechanism, a resumed run is the same,
the engines agree.

The cases are those of tests/strategies/contract_cases.py: every recipe that is found, and its
variants.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import fedlsg.simulations.client.client_account
import fedlsg.simulations.client.train
import fedlsg.training.client_round
from fedlsg.accounting.certified import compose
from fedlsg.accounting.events import Event
from fedlsg.method import client_step
from fedlsg.privacy.ledger import Entry
from fedlsg.privacy.mechanism import Mechanism, add_noise
from fedlsg.simulations.engines import ray
from fedlsg.training.client_round import unprotected
from tests.simulations.support.runs import (
    SMALL,
    Run,
    ignore,
    plan_at,
    resume_local,
    run_local,
    stopped_after,
)
from tests.strategies.contract_cases import CASES, RECIPES, has_own_step

STEPS = 2
"""Local steps of a round in the ledger's runs."""

LEDGERS = [
    pytest.param(name, marks=() if name in RECIPES or has_own_step(name) else pytest.mark.slow)
    for name, case in CASES.items()
    if case.multiplicity == 1 and not case.pruning
]
"""Variants of the frame alone are slow: the ledger sees the blocks of a frame, and nothing else of
it.
"""
STATEFUL = [
    "probe",
    "lsg-probe: averaged core, refreshed",
    "rs: ranked",
    "dp-ssgd: dp-snip, random",
    "dpsgd: averaged weights",
    "rgp: no residual",
]
"""Variants whose server remembers more between rounds than weights and optimizer."""

KINDS_OF_STATE = ("lsg", "lora", "fed-svd", "dp-powersgd", "gep", "topk", "dp-tl")
"""Recipes that differ in what a checkpoint holds, without a variant above."""

BLOCKS = {"lsg": 5, "rgp": 5, "probe": 4, "dp-kfc": 4, "rs": 4, "dpsgd": 4}
"""Blocks of the small model where the clip is per block: weight and bias, twice; a carried weight
makes two, or S.
"""


def settings_of(case: str) -> dict[str, Any]:
    """Settings of a run of a case; where no noise is added, none may be asked for."""
    silent = {} if CASES[case].method.mechanism.adds_noise else {"noise_multiplier": None}
    return {"method": CASES[case].name, **CASES[case].settings, **silent}


@dataclass(frozen=True)
class Noisy:
    """A run, and the mechanism of every draw of noise in it."""

    run: Run
    mechanisms: tuple[Mechanism, ...]


def noisy_run(case: str, out: Path, **changes: Any) -> Noisy:
    """A run of a case with secret noise, watched where the noise is added."""
    seen: list[Mechanism] = []

    def watched(total, mechanism, noise):
        seen.append(mechanism)
        return add_noise(total, mechanism, noise)

    def short_way(mechanism, frame, parameters):
        """Steps without noise, which draw none, count as draws of noise of deviation 0."""
        found = unprotected(mechanism, frame, parameters)
        seen.extend([mechanism] * STEPS * found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedlsg.training.client_round, "add_noise", watched)
        patch.setattr(fedlsg.training.client_round, "unprotected", short_way)
        run = run_local(
            out, **(settings_of(case) | {"local_steps": STEPS, "reproducible": False} | changes)
        )
    return Noisy(run, tuple(seen))


def ledger_defects(case: str, noisy: Noisy) -> list[str]:
    """Where ledgers and summary differ from the noise that was really drawn."""
    run, found = noisy.run, []
    clients, rounds, q, sigma = (
        SMALL[name] for name in ("clients", "rounds", "sample_rate", "noise_multiplier")
    )
    training = [m for m in noisy.mechanisms if m.clip_norm == run.config["clip-norm"]]
    pruning = [m for m in noisy.mechanisms if m.clip_norm != run.config["clip-norm"]]
    reads_data = CASES[case].settings.get("prune") == "dp-snip"
    if len(training) != clients * rounds * STEPS or len(pruning) != clients * reads_data:
        found.append(f"noise was drawn {len(training)} and {len(pruning)} times")
    kind, private = training[0].kind, training[0].kind == "dp"
    if any(
        m.noise_std != (sigma * m.clip_norm if kind in ("dp", "noise-only") else 0.0)
        for m in training
    ):
        found.append("the noise of a training step is not sigma C")
    effective = (
        sigma
        / math.sqrt(BLOCKS[CASES[case].name] if training[0].clip == "per-block" else 1)
        * private
    )
    pruned = {m.noise_std / m.clip_norm for m in pruning}
    charged = [(0, 1, 1.0, s) for s in pruned] + [
        (r + 1, STEPS, q, effective) for r in range(rounds)
    ]
    for client in range(clients):
        entries = run.entries(client)
        got = [(e.round, e.steps, e.sample_rate, e.noise_multiplier) for e in entries]
        if got != [(*rest, pytest.approx(s, rel=1e-12)) for *rest, s in charged] or {
            e.mechanism for e in entries
        } != {kind}:
            found.append(f"the ledger of client {client} holds {got}, drawn was {charged}")
    events = (
        [Event(sample_rate=q, noise_multiplier=effective, steps=rounds * STEPS)] if private else []
    )
    events += [Event(sample_rate=1.0, noise_multiplier=s, steps=1) for s in pruned]
    epsilon = compose(events, delta=1e-5).upper if private else math.inf
    if (
        run.summary["epsilon_max"] != pytest.approx(epsilon, rel=1e-9)
        or run.summary["private"] is not private
    ):
        found.append(
            f"epsilon {run.summary['epsilon_max']}, private {run.summary['private']}; drawn was "
            f"{epsilon}"
        )
    return found


@pytest.mark.thinned(5)
@pytest.mark.parametrize("case", LEDGERS)
def test_the_ledger_is_the_mechanism(case, tmp_path):
    noisy = noisy_run(case, tmp_path / "run")
    assert ledger_defects(case, noisy) == []
    assert [row.rejected for row in noisy.run.rows] == ["", ""]
    assert "derive another frame" not in noisy.run.log


@pytest.mark.slow
def test_rs_has_exactly_the_epsilon_of_dp_sgd(tmp_path):
    names = ["dpsgd", "rs", "rs: ranked", "rs: on carriers"]
    runs = [
        noisy_run(name, tmp_path / str(i)).run.summary["epsilon_max"]
        for i, name in enumerate(names)
    ]
    assert len(set(runs)) == 1


def one_step(**fields: Any) -> Entry:
    return Entry(**(fields | {"steps": 1}))


def private_all_the_same(**fields: Any) -> Entry:
    return Entry(**(fields | {"mechanism": "dp", "noise_multiplier": SMALL["noise_multiplier"]}))


def half_the_noise(*args: Any, mechanism: Mechanism, **settings: Any) -> Tensor:
    halved = replace(mechanism, noise_multiplier=mechanism.noise_multiplier / 2)
    return client_step(*args, mechanism=halved, **settings)


def nominal(self: Mechanism, blocks: int) -> float:
    return self.noise_multiplier


@pytest.mark.parametrize(
    ("case", "place", "attribute", "plant"),
    [
        ("lsg", fedlsg.simulations.client.client_account, "Entry", one_step),
        ("lsg", fedlsg.simulations.client.train, "client_step", half_the_noise),
        (
            "dp-ssgd: dp-snip, random",
            fedlsg.simulations.client.train,
            "client_step",
            half_the_noise,
        ),
        ("lsg: clip per block", Mechanism, "effective_noise_multiplier", nominal),
        ("rs: noisy SGD", fedlsg.simulations.client.client_account, "Entry", private_all_the_same),
    ],
)
def test_a_ledger_that_is_not_the_mechanism_is_caught(
    case, place, attribute, plant, tmp_path, monkeypatch
):
    """Negative controls: steps left out, less noise than charged, blocks forgotten, a clip that
    never was.
    """
    monkeypatch.setattr(place, attribute, plant)
    assert ledger_defects(case, noisy_run(case, tmp_path / "run")) != []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Reproducible runs by case, each made once."""
    folder, runs = tmp_path_factory.mktemp("whole"), {}

    def of(case: str) -> Run:
        if case not in runs:
            runs[case] = run_local(
                folder / str(len(runs)), record_updates=True, **settings_of(case)
            )
        return runs[case]

    return of


def same(a: Run, b: Run) -> bool:
    """Equal weights, ledgers and payloads, bit for bit."""
    return (
        a.weights.equal(b.weights)
        and a.ledgers == b.ledgers
        and a.payloads == b.payloads
        and len(a.payloads) >= 4
    )


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "case",
    [
        *KINDS_OF_STATE,
        *STATEFUL,
        *(pytest.param(r, marks=pytest.mark.slow) for r in RECIPES if r not in KINDS_OF_STATE),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(case, tmp_path, whole):
    stopped = stopped_after(1, tmp_path / "run", record_updates=True, **settings_of(case))
    assert not same(stopped, whole(case))
    resumed = resume_local(stopped.path)
    assert same(resumed, whole(case))
    assert resumed.summary["accuracy"] == whole(case).summary["accuracy"]


ON_RAY = ("dp-ssgd", "dp-powersgd", "probe")
"""Pruning, factors and carriers of a probe; the others run on Ray with the slow tests."""


@pytest.mark.thinned(2)
@pytest.mark.ray
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in ON_RAY else pytest.mark.slow) for case in RECIPES],
)
def test_every_recipe_runs_alike_on_ray(case, tmp_path, whole, on_ray):
    """Two clients, two rounds, Ray: weights, ledgers and payloads as on the local engine."""
    plan, directory = plan_at(
        tmp_path / "run", engine="ray", record_updates=True, **settings_of(case)
    )
    summary = ray.run(plan, directory, on_round=ignore)
    run = Run(directory.path, plan, summary)
    assert same(run, whole(case))
    # JSON has no inf: the file says "inf"
    assert float(summary["epsilon_max"]) == whole(case).summary["epsilon_max"]
    assert [row.rejected for row in run.rows] == ["", ""]
