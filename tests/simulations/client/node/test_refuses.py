"""Announced terms that are weaker than the client's own: refused by name in the query already, and
in a round again.
"""

from typing import Any

import pytest

from fedlsg.simulations.client.node.node_config import read_terms
from fedlsg.simulations.client.node.refusals import TermsError
from fedlsg.strategies.protocol.proofs import Held
from fedlsg.strategies.protocol.wire import REFUSED_RUN, REFUSED_TERMS
from tests.simulations.support.deployed import (
    Server,
    digits_file,
    entries,
    examples,
    payload,
    refusal,
    terms,
)

WEAKER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "reproducible": ({"reproducible": True}, {}, "reproducible=true"),
    "no mechanism": ({"mechanism": "none", "noise_multiplier": None}, {}, "mechanism='none'"),
    "a method without": (
        {"method": "sgd", "noise_multiplier": None},
        {},
        r"mechanism='none' \(method 'sgd'\)",
    ),
    "clip alone": (
        {"mechanism": "clip-only", "noise_multiplier": None},
        {},
        "mechanism='clip-only'",
    ),
    "noise alone": ({"mechanism": "noise-only"}, {}, "mechanism='noise-only'"),
    "a share of the noise": ({"trust": "aggregate"}, {}, "trust=aggregate"),
    "a share among many": (
        {"trust": "aggregate", "clients": 1000, "clients_per_round": 1000, "min_survivors": 1000},
        {"trust": "aggregate"},
        "trust=aggregate with clients=1000: .* num-partitions=2",
    ),
    "a share among nobody knows how many": (
        {"trust": "aggregate"},
        {"trust": "aggregate", "num_partitions": None},
        "trust=aggregate with clients=2",
    ),
    "a sum that nobody in it reads": (
        {"trust": "secure", "colluders": 0},
        {"trust": "secure"},
        "colluders=0: .* each of them knows its own",
    ),
    "terms without a reader": (
        {"trust": "secure"},
        {"trust": "secure", "colluders": 0},
        "colluders=0 counts the noise of every other client",
    ),
    "a larger delta": (
        {"delta": 2e-5},
        {},
        "delta=2e-05 is weaker than this client's delta-max=1e-05",
    ),
    "the preset's delta": ({"delta": None}, {"delta_max": 1e-6}, "delta=1e-05 is weaker"),
    "a larger epsilon": (
        {"epsilon": 3.5},
        {},
        "epsilon=3.5 is more than this client's epsilon-max=3",
    ),
    "the preset's epsilon": (
        {"noise_multiplier": None},
        {},
        "epsilon=8 is more than this client's epsilon-max=3",
    ),
    "delta above 1/N": (
        {"delta": 1e-5},
        {"delta_max": 0.01},
        r"delta-max=0.01 is not below 1/N_k = 0.00139",
    ),
    "no such client": (
        {"clients": 2},
        {"partition_id": 2, "num_partitions": 3},
        "clients=2, .* partition-id=2",
    ),
    "clients nowhere": (
        {"clients": None},
        {"num_partitions": None},
        "num-partitions in the node config",
    ),
    "no ledger": ({}, {"ledger_dir": None}, "needs ledger-dir, the folder of its privacy ledger"),
    "no epsilon": ({}, {"epsilon_max": None}, "needs epsilon-max"),
    "no delta": ({}, {"delta_max": None}, "needs delta-max"),
    "no number": ({}, {"partition_id": None}, "needs partition-id"),
    "misspelt": ({}, {"acept_changed_data": True}, "did you mean 'accept-changed-data'"),
}


@pytest.mark.thinned(11)
@pytest.mark.parametrize("weaker", WEAKER)
def test_weaker_terms_are_refused_by_name_and_nothing_is_spent(weaker, tmp_path):
    settings, node, text = WEAKER[weaker]
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    server.node = terms(tmp_path / "node", **node)
    for name, value in settings.items():
        server.config.pop(name.replace("_", "-"), None)
        if value is not None:
            server.config[name.replace("_", "-")] = value
    for reply in (server.query(), server.train(1)):
        with pytest.raises(AssertionError, match=text):
            raise AssertionError(refusal(reply))
        assert reply.error.code in (REFUSED_TERMS, REFUSED_RUN)
    assert not (tmp_path / "node" / "ledger.jsonl").exists() or entries(tmp_path / "node") == ()


def test_a_client_may_accept_a_share_of_the_noise(tmp_path):
    server = Server.start(
        terms(tmp_path / "node", trust="aggregate"), tmp_path / "copy", trust="aggregate"
    )
    assert examples(server.query()) == 719
    payload(server.train(1))


def test_a_server_without_a_name_for_its_run_is_refused_before_anything_is_spent(tmp_path):
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    assert "[1006] the server names no run" in refusal(server.train(1, held=None))
    assert entries(tmp_path / "node") == ()


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "a/b", "../../etc", "a\\b", "a b", "ä", "x" * 65]
)
def test_the_name_of_a_run_is_no_path(name, tmp_path):
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    assert "[1006] the server names its run" in refusal(
        server.train(1, held=Held(run=name, head="0" * 64))
    )
    assert entries(tmp_path / "node") == ()
    assert not (tmp_path / "node" / "runs").exists()


def test_a_server_that_holds_what_the_ledger_lacks_is_refused_before_anything_is_spent(tmp_path):
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    assert "the server holds an entry that this ledger lacks" in refusal(
        server.train(1, held=Held(run="run-1", head="1" * 64))
    )
    assert entries(tmp_path / "node") == ()


@pytest.mark.parametrize(
    ("data", "settings", "text"),
    [
        (
            "cifar10:{}",
            {},
            "[1006] the run trains on workload 'digits', and this client's data are for 'cifar10'",
        ),
        (
            "rows.npz",
            {},
            "[1006] node config: expected data='rows.npz' as WORKLOAD:PATH, where WORKLOAD is one "
            "of digits",
        ),
        (
            "digits:rows.npz",
            {},
            "[1006] node config: expected data='rows.npz' to be an absolute path",
        ),
        ("digits:{}", {"model": "/etc/passwd"}, "[1006] model='/etc/passwd' is a path"),
        ("{}", {"train-rows": 100}, "[1006] train_rows chooses among training rows"),
        ("{}", {"holdout": 0.1}, "[1006] holdout chooses among training rows"),
        (
            "{}",
            {"public-rows": "data:/etc/passwd"},
            "public_rows replaces the training rows of a simulation",
        ),
    ],
)
def test_what_does_not_fit_the_clients_data_is_refused_by_name(data, settings, text, tmp_path):
    rows = digits_file(tmp_path / "rows.npz")
    server = Server.start(terms(tmp_path / "node", data=data.format(rows)), tmp_path / "copy")
    server.config |= settings
    assert text in refusal(server.query())
    assert text in refusal(server.train(1))


LEAST = {"partition-id": 1, "ledger-dir": "/srv/ledger", "epsilon-max": 3, "delta-max": 1e-6}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition-id", -1),
        ("partition-id", 1.0),
        ("partition-id", True),
        ("partition-id", "1"),
        ("num-partitions", 0),
        ("num-partitions", 1),
        ("ledger-dir", "ledger"),
        ("ledger-dir", ""),
        ("ledger-dir", 3),
        ("epsilon-max", 0),
        ("epsilon-max", -1),
        ("epsilon-max", float("inf")),
        ("epsilon-max", float("nan")),
        ("epsilon-max", "3"),
        ("epsilon-max", True),
        ("delta-max", 0.0),
        ("delta-max", 1.0),
        ("delta-max", "1e-5"),
        ("trust", "server"),
        ("colluders", -1),
        ("colluders", 0),
        ("colluders", True),
        ("trust", True),
        ("accept-changed-data", "yes"),
        ("accept-changed-data", 1),
        ("data", ""),
        ("data", 5),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_key(key, value):
    with pytest.raises(TermsError, match=key):
        read_terms(LEAST | {key: value})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("ledger_dir", "ledger-dir"),
        ("ledgerdir", "ledger-dir"),
        ("Epsilon-Max", "epsilon-max"),
        ("delta-mx", "delta-max"),
        ("dta", "data"),
        ("trsut", "trust"),
        ("accept-changed-dat", "accept-changed-data"),
        ("partition_id", "partition-id"),
    ],
)
def test_a_misspelt_key_is_named_with_the_one_that_was_meant(key, meant):
    with pytest.raises(TermsError, match=f"unknown key '{key}'; did you mean '{meant}'"):
        read_terms(LEAST | {key: 1})


@pytest.fixture
def own_code(monkeypatch):
    """The client's rule says that the model is its user's own; the server planned before."""

    def start(folder, **node):
        server = Server.start(terms(folder / "node", **node), folder / "copy")
        rule = lambda model, loss, wanted, trial: "isolated" if wanted == "auto" else wanted  # noqa: E731
        monkeypatch.setattr("fedlsg.simulations.planning.base.isolation_level.resolve", rule)
        return server

    return start


def levels(folder):
    return [entry.isolation for entry in entries(folder / "node")]


def test_a_weaker_level_than_the_client_s_rule_is_refused_and_nothing_is_spent(own_code, tmp_path):
    server = own_code(tmp_path)
    for config in ({}, {"isolation": "checked"}):  # the server's word is not this client's
        server.config |= config
        reply = server.train(1, isolation="checked")
        assert (
            "isolation=checked: the server runs the model so, and here it is isolated"
            in refusal(reply)
        )
        assert reply.error.code == 1006
    assert levels(tmp_path) == []


@pytest.mark.parametrize("level", ["isolated", "rows"])
def test_a_level_as_strict_as_the_client_s_rule_is_the_one_of_its_round(level, own_code, tmp_path):
    payload(own_code(tmp_path).train(1, isolation=level))
    assert levels(tmp_path) == [level]


def test_library_code_runs_at_whatever_is_announced(tmp_path):
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    payload(server.train(1, isolation="rows"))
    assert levels(tmp_path) == ["rows"]
    assert "isolation=loose" in refusal(server.train(2, isolation="loose"))


def test_a_node_config_may_accept_a_weaker_level_and_then_takes_no_other(own_code, tmp_path):
    server = own_code(tmp_path, isolation="checked")
    payload(server.train(1, isolation="checked"))
    assert levels(tmp_path) == ["checked"]
    assert "isolation=rows: the server runs the model so, and here it is checked" in refusal(
        server.train(2, isolation="rows")
    )
    with pytest.raises(
        TermsError, match="expected isolation='loose' among auto, isolated, rows, checked"
    ):
        read_terms({**LEAST, "isolation": "loose"})
