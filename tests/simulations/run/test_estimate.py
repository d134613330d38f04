"""What ``fedlsg plan`` says beforehand is what a run of the same settings then records."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.run.plan_command import _words, facts_of
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.messages.byte_lines import read_lines
from tests.simulations.support.runs import SMALL, run_local

SECRET = {**SMALL, "reproducible": False, "rounds": 3}
LEVEL = {"unit": "client", "sample_rate": None, "batch_size": 20}
KINDS: dict[str, dict[str, Any]] = {
    "lsg": {"method": "lsg"},
    "dense, given epsilon, half the clients": {
        "method": "dpsgd",
        "codec": "bfloat16",
        "noise_multiplier": None,
        "epsilon": 4.0,
        "clients": 4,
        "clients_per_round": 2,
    },
    "clients of many sizes, few of whom are asked": {
        "method": "dpsgd",
        "partition": "dirichlet",
        "sample_rate": None,
        "batch_size": 20,
        "clients": 6,
        "clients_per_round": 3,
        "rounds": 4,
    },
    "no privacy, several steps": {"method": "sgd", "noise_multiplier": None, "local_steps": 3},
    "a mask that cools": {"method": "rs", "rounds": 4},
    "updates sent down": {"method": "lsg", "downlink": "sparse"},
    "pruned before": {"method": "dp-ssgd"},
    "clients that leave": {
        "method": "rgp",
        "clients": 6,
        "clients_per_round": 4,
        "dropout": 0.4,
        "rounds": 5,
    },
    "shuffled": {"method": "dpsgd", "sampling": "shuffle", "sample_rate": None, "batch_size": 100},
    "secure sum": {"method": "lsg", "trust": "secure", "clients": 4},
    "client level in a secure sum": {"method": "rs", **LEVEL, "trust": "secure", "clients": 4},
    "client level, trusted server": {
        "method": "rs",
        **LEVEL,
        "trust": "server",
        "clients": 6,
        "clients_per_round": 3,
    },
}
HIDDEN = "client level, trusted server"


def recorded(path: Path) -> dict[tuple[int, int, str], list[int]]:
    """Bytes of each client's messages in each round, added up: values and payload."""
    found: dict[tuple[int, int, str], list[int]] = {}
    for line in read_lines(path):
        one = found.setdefault((line.round, line.client, line.direction), [0, 0])
        one[0] += line.values_bytes
        one[1] += line.payload_bytes
    return found


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planned_is_what_a_run_records(kind, tmp_path):
    given = {**SECRET, **KINDS[kind]}
    plan = make_plan(
        from_mapping({name: value for name, value in given.items() if value is not None})
    )
    facts = json.loads(json.dumps(facts_of(plan)))
    run = run_local(tmp_path / "run", **given)
    summary = run.summary
    for name in ("noise_multiplier", "delta"):
        assert facts[name] == summary[name], name
    assert facts["rho"] == summary["rho"]
    if "leave" not in kind:  # who leaves is charged for fewer rounds
        assert facts["epsilon_max"] == pytest.approx(summary["epsilon_max"], rel=1e-9)
    assert facts["epsilon_max"] >= summary["epsilon_max"]
    assert facts["private"] == summary["private"]
    if kind == HIDDEN:
        assert not run.directory.messages.exists()
        return
    if plan.sums is not None:
        assert facts["bits"] == summary["codec"]["bits"]
    sizes = recorded(run.directory.messages)
    assert facts["uplink_bytes"] == pytest.approx(
        summary["uplink_bytes"], rel=1e-3 if plan.method.mask.cooling else 1e-9
    )
    assert facts["downlink_bytes"] == summary["downlink_bytes"]
    up = {tuple(one) for (round, _, way), one in sizes.items() if round and way == "up"}
    if not plan.method.mask.cooling:  # else it is the mean round's, whose parts are rounded
        assert up == {(facts["bytes"]["up"]["values"], facts["bytes"]["up"]["payload"])}
    first = {one[1] for (round, _, way), one in sizes.items() if round == 1 and way == "down"}
    assert first == {facts["bytes"]["down_first"]["payload"]}


def test_a_plan_says_that_a_mask_grows_and_what_flower_adds_in_a_deployment():
    def words(**given):
        return _words(facts_of(make_plan(from_mapping({**SECRET, "method": "rs", **given}))))

    grown, still = words(), words(cooling=False)
    assert "on average: 0.5 of the values are frozen at the end, growing from 0" in grown["values"]
    assert still["values"].endswith("a client and round")
    assert "17.00 kB up and 4.20 kB down a client and round" in grown["deployment"]
    payload = int(grown["up"].split()[0].replace(",", ""))
    assert ("MORE than the payload" in grown["deployment"]) == (payload < 17_000)
    facts = facts_of(make_plan(from_mapping({**SECRET, "method": "rs"})))
    facts["bytes"]["up"]["payload"] = 17_001
    assert "MORE" not in _words(facts)["deployment"]


@pytest.mark.slow
def test_the_command_prints_json_and_leaves_nothing(fedlsg, tmp_path):
    options = ["--clients", "2", "--rounds", "2", "--noise-multiplier", "2", "--engine", "local"]
    status, out, err = fedlsg("plan", "digits", *options, "--phones", "50", "--json")
    assert status == 0, err
    facts = json.loads(out)
    assert (facts["rounds"], facts["phones"]["phones"], facts["noise_multiplier"]) == (2, 50, 2.0)
    assert list(tmp_path.iterdir()) == []
    table = fedlsg("plan", "digits", *options)[1]
    assert "1,000 phones" in table
    assert "rho" in table
