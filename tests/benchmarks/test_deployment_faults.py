"""The trials of deployments find what they look for: each planted mistake of a hospital or a server
is named.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment_faults import FEW, HOSPITALS, Fault, Trial, first_run, run_trials
from benchmarks.flower.machines import Machine
from fedlsg.privacy import Entry
from tests.simulations.support.deployed import entries

RUN = "run-1"
PAYLOADS = {round: f"payload {round}".encode() for round in range(1, FEW + 1)}


def entry(client: int, round: int, attempt: int = 0, run: str = RUN) -> Entry:
    return Entry(
        client=client,
        round=round,
        attempt=attempt,
        steps=1,
        sample_rate=0.1,
        noise_multiplier=2.0,
        clip_norm=0.5,
        num_examples=900,
        mechanism="dp",
        run=run,
    )


def lines_of(round: int, attempt: int = 0, payload: bytes | None = None) -> list[dict[str, Any]]:
    """What a hospital writes down in an attempt that succeeds."""
    own, digest = {"process": 1, "entry": [round, attempt]}, payload or PAYLOADS[round]
    asked = {"process": 1, "round": round, "question": f"{round} q"}
    return [
        {"what": "asked", **asked},
        {"what": "charged", **own},
        {"what": "drew", **own},
        {"what": "payload", **asked, "digest": hashlib.sha256(digest).hexdigest()},
    ]


class Told(Trial):
    """A trial whose ledgers are in memory, and whose run directory is a folder of the test."""

    charged: dict[str, list[Entry]]
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder

    def entries(self, name: str) -> list[Entry]:
        return self.charged[name]


@pytest.fixture
def honest(tmp_path: Path) -> Told:
    """After a fault in round 2, without anything that is wrong."""
    made = {name: Machine(root=tmp_path, name=name, ports={}) for name in ("server", *HOSPITALS)}
    told = Told(
        made=made,
        fault=Fault.of(1),
        earlier={"runs": 0} | {f"{name} lines": 0 for name in HOSPITALS},
        before="round\n1\n",
    )
    told.folder, told.charged = tmp_path / "run", {}
    for number, name in enumerate(HOSPITALS):
        (made[name].home / "witness").mkdir(parents=True)
        write(told, name, [line for round in PAYLOADS for line in lines_of(round)])
        told.charged[name] = [entry(number, round) for round in PAYLOADS]
        for round, payload in PAYLOADS.items():
            folder = told.folder / "updates" / f"round-{round:06d}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"client-{number:06d}.bin").write_bytes(payload)
    return told


def write(told: Told, name: str, lines: list[dict[str, Any]]) -> None:
    path = told.made[name].home / "witness" / "lines.jsonl"
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def found(told: Told) -> list[str]:
    told.wrong.clear()
    for name in HOSPITALS:
        told._check_hospital(told.folder, name)
    return told.wrong


def test_an_honest_trial_is_sound_also_with_an_attempt_more_in_the_interrupted_round(honest):
    assert found(honest) == []
    honest.charged["north"].append(entry(0, 2, attempt=1))
    assert found(honest) == [], "a killed ClientApp has charged, and sent nothing"


def draw_uncharged(told: Told) -> None:
    told.charged["north"] = told.charged["north"][:-1]


def draw_twice(told: Told) -> None:
    write(told, "north", lines_of(2))


def draw_before_a_charge(told: Told) -> None:
    write(told, "north", [{"what": "drew", "process": 2, "entry": None}])


def charge_stored(told: Told) -> None:
    told.charged["north"].append(entry(0, 2, attempt=1))
    write(told, "north", lines_of(2, attempt=1))


def charge_another_round(told: Told) -> None:
    told.charged["north"].append(entry(0, 1, attempt=1))


def send_two_payloads(told: Told) -> None:
    write(told, "north", lines_of(2, payload=b"another")[-1:])


def use_another_payload(told: Told) -> None:
    (told.folder / "updates" / "round-000002" / "client-000000.bin").write_bytes(b"forged")


def charge_in_two_runs(told: Told) -> None:
    told.charged["north"].append(entry(0, 1, run="run-2"))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (draw_uncharged, "north drew without a charge"),
        (draw_twice, "north drew twice for one charge"),
        (draw_before_a_charge, "north drew without a charge"),
        (charge_stored, "north charged for what it had stored"),
        (charge_another_round, "north charged again in another round than the interrupted one"),
        (send_two_payloads, "north sent what nobody charged"),
        (use_another_payload, "north used what it did not send"),
        (charge_in_two_runs, "north in two runs"),
    ],
)
def test_each_planted_mistake_is_named(honest, plant, words):
    plant(honest)
    assert words in found(honest)
    assert all(told.startswith("north") for told in honest.wrong)


def test_the_run_of_the_document_is_found():
    assert f"rounds = {FEW}" in first_run()


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_client_app_costs_no_round_and_no_second_charge(tmp_path):
    """One real trial, of seed 11; docs/results/faults.md has twenty."""
    ((seed, trial),) = run_trials([11], tmp_path)
    assert (seed, trial.wrong, trial.is_finished) == (11, [], True)
    for name in HOSPITALS:
        folder = trial.made[name].home / "federation" / "ledger"
        assert {entry.round for entry in entries(folder)} == set(range(1, FEW + 1))
