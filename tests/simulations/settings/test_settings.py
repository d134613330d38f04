"""Settings: every one parses from the command line, TOML and Flower's run config, and every wrong one is named."""

import math
import tomllib
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from simulations.settings.settings import PRESET, Settings, as_config, from_mapping, parse
from tests.places import REPOSITORY

HINTS = get_type_hints(Settings)
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
RUN_CONFIG = PYPROJECT["tool"]["flwr"]["app"]["config"]


def kind_of(name: str) -> Any:
    """The type of a setting without None."""
    options = [option for option in get_args(HINTS[name]) if option is not type(None)]
    return options[0] if type(None) in get_args(HINTS[name]) else HINTS[name]


def values_of(name: str) -> st.SearchStrategy[Any]:
    kind = kind_of(name)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    numbers = {int: st.integers(-(10**6), 10**6), float: st.floats(allow_nan=False, allow_infinity=False)}
    words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1).filter(lambda s: s != PRESET)
    return {bool: st.booleans(), str: words, **numbers}[kind]


all_settings = st.fixed_dictionaries({}, optional={f.name: values_of(f.name) for f in fields(Settings)})


@given(all_settings)
def test_a_command_line_says_the_same_as_toml(values):
    settings = Settings(**values)
    assert from_mapping({name: str(value) for name, value in values.items()}) == settings
    assert (
        from_mapping(tomllib.loads(tomli_w.dumps({name.replace("_", "-"): v for name, v in values.items()})))
        == settings
    )


@given(all_settings)
def test_config_toml_round_trips(values):
    settings = Settings(**values)
    config = as_config(settings)
    assert from_mapping(tomllib.loads(tomli_w.dumps(config))) == settings
    assert all("_" not in name for name in config)


def test_every_kind_of_setting_by_hand():
    given = {"rank": "8", "sparsity": "0.5", "cooling": "no", "direction": "bottom", "data-dir": "x", "rounds": 3.0}
    assert parse(given) == {
        "rank": 8, "sparsity": 0.5, "cooling": False, "direction": "bottom", "data_dir": "x", "rounds": 3,
    }  # fmt: skip
    assert type(parse({"alpha": 1})["alpha"]) is float


def test_flower_run_config_lists_every_setting_with_its_default():
    """Flower refuses an override that pyproject.toml does not list, and hands every listed value to the app."""
    assert list(RUN_CONFIG) == [f.name.replace("_", "-") for f in fields(Settings)]
    for f in fields(Settings):
        listed = RUN_CONFIG[f.name.replace("_", "-")]
        assert listed == (PRESET if f.default is None else f.default), f.name
        assert f.default is None or type(listed) is type(f.default)
    assert from_mapping(RUN_CONFIG) == Settings()


def test_all_settings_have_defaults():
    assert [f.name for f in fields(Settings) if f.default is MISSING] == []


@pytest.mark.parametrize("name", [f.name for f in fields(Settings)])
def test_preset_and_none_leave_a_setting_to_the_workload(name):
    assert parse({name: PRESET}) == parse({name: None}) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sparcity": 0.3}, "unknown setting 'sparcity'; did you mean 'sparsity'?"),
        ({"zzz": 1}, "^unknown setting 'zzz'$"),
        ({"rank": "four"}, r"expected a number \(int\) for rank, got 'four'"),
        ({"rank": "4.0"}, r"expected a number \(int\) for rank, got '4.0'"),
        ({"rank": 4.5}, r"expected a number \(int\) for rank, got 4.5"),
        ({"rank": True}, r"expected a number \(int\) for rank, got True"),
        ({"rounds": math.inf}, r"expected a number \(int\) for rounds, got inf"),
        ({"rounds": math.nan}, r"expected a number \(int\) for rounds, got nan"),
        ({"epsilon": "eight"}, r"expected a number \(float\) for epsilon, got 'eight'"),
        ({"epsilon": False}, r"expected a number \(float\) for epsilon, got False"),
        ({"reproducible": "maybe"}, "expected true or false for reproducible, got 'maybe'"),
        ({"mechanism": "laplace"}, r"expected mechanism in \('dp', .*\), got 'laplace'"),
        ({"sampling": "shuffled"}, r"expected sampling in \('poisson',\), got 'shuffled'"),
        ({"engine": "spark"}, r"expected engine in \('flower', 'local'\), got 'spark'"),
        ({"codec": "int4"}, "expected codec in .*, got 'int4'"),
        ({"trust": []}, r"expected trust in .*, got \[\]"),
    ],
)
def test_a_wrong_setting_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        parse(given)
