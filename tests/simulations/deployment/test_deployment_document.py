"""What docs/deployment.md says of terms and refusals is what the code does; its commands:
test_two_hospitals.py.
"""

import re
import tomllib
from collections.abc import Callable

import pytest
from flwr.common.config import parse_config_args

from benchmarks.flower.how_to import blocks
from fedlsg.simulations.client.node.conditions import usable
from fedlsg.simulations.client.node.node_config import KEYS, NodeConfig, read_terms
from fedlsg.simulations.client.node.refusals import OwnDataError, TermsError
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.settings.with_preset import from_run_config
from tests.places import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "deployment.md"
MACHINES = ("server", "north", "south")


def chapter(number: int) -> str:
    """The text of a chapter."""
    return re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)[number]


def node_configs() -> list[str]:
    """Every node config of the commands."""
    return [
        found
        for block in blocks(DOCUMENT, MACHINES)
        for found in re.findall(r'--node-config "(.*)"', block.text)
    ]


def terms() -> NodeConfig:
    """The terms of north."""
    return read_terms(parse_config_args([node_configs()[0]]))


def run_settings(**changes: object) -> Settings:
    """The settings of run.toml, with changes."""
    (text,) = [
        t
        for b in blocks(DOCUMENT, MACHINES)
        for t in re.findall(r"run\.toml <<END\n(.*?)END", b.text, re.DOTALL)
    ]
    return from_run_config(tomllib.loads(text) | changes)


def test_the_table_of_terms_is_whole():
    rows = [line.split("|")[1] for line in chapter(10).splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`([\w-]+)`", row)) == sorted(KEYS)


def test_every_node_config_is_valid_and_its_hospital_keeps_its_number():
    found = [read_terms(parse_config_args([config])) for config in node_configs()]
    assert [(t.partition, t.epsilon_max) for t in found] == [(0, 2.25), (1, 2.15), (1, 2.15)]
    assert all(usable(run_settings(), t) for t in found)


def other_terms(**changes: object) -> NodeConfig:
    config = parse_config_args([node_configs()[0]]) | changes
    return read_terms({key: value for key, value in config.items() if value is not None})


REFUSALS: dict[str, Callable[[], object]] = {
    "a deployed client needs ledger-dir": lambda: other_terms(**{"ledger-dir": None}),
    "unknown key 'ledgerdir'": lambda: other_terms(ledgerdir="/srv"),
    "reproducible=true": lambda: usable(run_settings(reproducible=True), terms()),
    "mechanism='none'": lambda: usable(
        run_settings(method="sgd", epsilon="preset", delta="preset"), terms()
    ),
    "the run's epsilon=3": lambda: usable(run_settings(epsilon=3.0), terms()),
    "the run's delta=0.001": lambda: usable(run_settings(delta=0.001), terms()),
}


@pytest.mark.parametrize("begins", REFUSALS)
def test_a_refusal_is_worded_as_the_document_says(begins):
    (row,) = [
        line for line in chapter(11).splitlines() if line.startswith("| `") and begins in line
    ]
    words = row.split("`")[1].removesuffix("...").rstrip()
    with pytest.raises(TermsError) as refused:
        REFUSALS[begins]()
    assert str(refused.value).startswith(words)


def test_the_text_about_own_data_is_constant():
    assert f"`{OwnDataError()}`" in chapter(11)
