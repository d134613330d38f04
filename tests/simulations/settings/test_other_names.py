"""Names of other libraries have their hint at every place that refuses an unknown name: the table
times the places, each really tried.
"""

import re
from collections.abc import Callable, Collection, Mapping
from inspect import signature
from typing import Any

import pytest
import typer.main
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedlsg
from fedlsg import strategies
from fedlsg.config import foreign
from fedlsg.config.foreign import NOT_NEEDED, OUR_NAMES
from fedlsg.simulations.cli.command_line import app
from fedlsg.simulations.compare.grid.cells import Entry
from fedlsg.simulations.compare.grid.grid_file import from_toml
from fedlsg.simulations.compare.search.space import make_spaces
from fedlsg.simulations.run.simulate import MORE
from fedlsg.simulations.settings.settings import all_settings
from fedlsg.simulations.settings.with_preset import from_run_config
from tests.simulations.support.own import build, workload

HINT = re.compile(
    r"it is (?:'?[\w-]+'?(?: or )?)+ here|leave it out: |fedlsg calls it |it is a setting: "
)


def of_simulate(name: str) -> object:
    return fedlsg.simulate(workload=workload(), quiet=True, **{name: 1})


def of_private_step(name: str) -> object:
    own: Mapping[str, Any] = {"num_examples": 60, "noise_multiplier": 1.0, "delta": 1e-3}
    return fedlsg.PrivateStep(build(), nn.CrossEntropyLoss(), **own, **{name: 1})


def of_compare(name: str) -> object:
    return fedlsg.compare("digits", ["lsg"], quiet=True, **{name: 1})


def of_strategy(name: str) -> object:
    return fedlsg.flower.Strategy(workload, method="lsg", clients=2, **{name: 1})


def of_private_update(name: str) -> object:
    return fedlsg.flower.private_update(build, epsilon=8.0, delta=1e-5, **{name: 1})


def of_private_updates(name: str) -> object:
    return fedlsg.flower.PrivateUpdates(FedAvg(), build, method="lsg", epsilon=8.0, **{name: 1})


def of_calibrate(name: str) -> object:
    given = {"epsilon": 1.0, "delta": 1e-5, "sample_rate": 0.1, "steps": 10}
    return fedlsg.calibrate_noise_multiplier(**given, **{name: 1})


def of_search(name: str) -> object:
    return make_spaces({("", name): "0.1..1"}, [Entry(label="lsg", method="lsg")], {"lsg": {}})


def taken_by(function: Callable[..., object]) -> Callable[[], Collection[str]]:
    return lambda: signature(function).parameters


def no_more() -> Collection[str]:
    return ()


def of_recipes() -> Collection[str]:
    return {*strategies.own_settings("lsg"), *strategies.common_settings()}


PLACES: dict[str, tuple[Callable[[str], object], Callable[[], Collection[str]]]] = {
    "simulate": (
        of_simulate,
        lambda: {*all_settings(), *MORE, *signature(fedlsg.simulate).parameters},
    ),
    "compare": (
        of_compare,
        lambda: {*all_settings(), *signature(fedlsg.compare).parameters},
    ),
    "PrivateStep": (
        of_private_step,
        lambda: {*signature(fedlsg.PrivateStep).parameters, *of_recipes()},
    ),
    "recipe": (lambda name: fedlsg.recipe("lsg", **{name: 1}), of_recipes),
    "a strategy of Flower": (
        of_strategy,
        lambda: {
            *all_settings(),
            *signature(fedlsg.flower.Strategy).parameters,
            # taken as FedAvg takes them
            *("fraction_train", "fraction_fit", "min_available_nodes", "min_available_clients"),
        },
    ),
    "private_update": (of_private_update, taken_by(fedlsg.flower.private_update)),
    "PrivateUpdates": (
        of_private_updates,
        lambda: {*signature(fedlsg.flower.PrivateUpdates).parameters, *of_recipes()},
    ),
    "calibrate": (of_calibrate, taken_by(fedlsg.calibrate_noise_multiplier)),
    "a key of a run config": (
        lambda name: from_run_config({name.replace("_", "-"): 1}),
        all_settings,
    ),
    "settings of a run config": (
        lambda name: from_run_config({"settings": f"{name}=1"}),
        all_settings,
    ),
    "a key of a grid": (lambda name: from_toml({name: 1}), no_more),
    "settings of a grid": (lambda name: from_toml({"settings": {name: 1}}), all_settings),
    "a method of a grid": (lambda name: from_toml({"methods": {"lsg": {name: 1}}}), all_settings),
    "what a grid varies": (lambda name: from_toml({"vary": {name: [1, 2]}}), all_settings),
    "a search": (of_search, all_settings),
}


def said_at(place: str, name: str) -> str | None:
    """What the place says of a name; None for one that it takes."""
    give, taken = PLACES[place]
    if name in taken():
        return None
    with pytest.raises((ValueError, TypeError)) as refused:
        give(name)
    return str(refused.value)


WELL_KNOWN = (
    "target_epsilon",
    "target_delta",
    "max_grad_norm",
    "batch_size",
    "max_physical_batch_size",
    "noise_scale",
    "l2_norm_clip",
    "num_clients",
    "fraction_fit",
    "min_available_clients",
    "num_rounds",
    "lr",
    "secure_mode",
)
NAMES = [
    pytest.param(WELL_KNOWN, id="well known"),
    pytest.param((*OUR_NAMES, *NOT_NEEDED), id="all", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("place", PLACES)
def test_names_of_other_libraries_have_their_hint_at_every_place(place, names):
    without = {
        name: said
        for name in names
        if (said := said_at(place, name)) is not None and not HINT.search(said)
    }
    assert not without
    known = {*PLACES[place][1]()}
    for name in names:
        found = re.search(r"it is ((?:'\w+'(?: or )?)+) here", said_at(place, name) or "")
        assert not found or not known or {*re.findall(r"'(\w+)'", found[1])} <= known, name


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize(
    "command", ["run", "plan", "compare --methods lsg", "partition", "inspect --workload digits"]
)
def test_names_of_other_libraries_have_their_hint_as_options(command, names, fedlsg):
    own = typer.main.get_command(app).commands[command.split()[0]].params
    for name in sorted({*names} - {*all_settings(), *(one.name for one in own)}):
        for words in ([f"--{name.replace('_', '-')}", "1"], ["-c", f"{name}=1"]):
            status, _, said = fedlsg(*command.split(), *words)
            assert status != 0
            assert HINT.search(said), (name, said)


def test_a_command_without_settings_has_the_hint_too(fedlsg):
    for command, option, said in (
        ("calibrate", "--target-epsilon", "it is --epsilon here"),
        ("calibrate", "--noise-scale", "it is --noise-multiplier here, the deviation of the noise"),
        ("resume", "--num-rounds", "it is --rounds here"),
    ):
        assert said in fedlsg(command, option, "1")[2]


def test_a_name_that_is_missing_in_the_table_is_found(monkeypatch):
    """The control: a name is taken out."""
    monkeypatch.delitem(foreign.OUR_NAMES, "max_grad_norm")
    said = [said_at(place, "max_grad_norm") for place in PLACES]
    assert not any(HINT.search(text or "") for text in said)
