"""Settings: every one parses from the command line, TOML and Flower's run config, and every wrong
one is named.
"""

import math
import re
import tomllib
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from docs._sphinx.settings import settings_page
from fedlsg.config import Declared
from fedlsg.simulations.settings.settings import (
    KNOWN,
    PRESET,
    RUN,
    Settings,
    all_settings,
    as_config,
    from_mapping,
    from_values,
    parse,
)
from fedlsg.simulations.settings.with_preset import FREE_FORM, from_run_config
from tests.places import REPOSITORY

ALL = all_settings()
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
RUN_CONFIG = PYPROJECT["tool"]["flwr"]["app"]["config"]


def values_of_kind(declared: Declared) -> st.SearchStrategy[Any]:
    """Values that a setting accepts."""
    if declared.choices:
        return st.sampled_from(tuple(declared.choices))
    words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1).filter(
        lambda s: s != PRESET
    )
    floats = st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1)
    kinds = {bool: st.booleans(), str: words, int: st.integers(0, 10**6), float: floats}
    return kinds[declared.kind].filter(
        lambda value: declared.kind in (bool, str) or declared.setting.contains(value)
    )


some_settings = st.fixed_dictionaries(
    {}, optional={name: values_of_kind(one) for name, one in ALL.items()}
)


@given(some_settings)
def test_a_command_line_says_the_same_as_toml(values):
    settings = from_values(values)
    assert from_mapping({name: str(value) for name, value in values.items()}) == settings
    assert (
        from_mapping(
            tomllib.loads(tomli_w.dumps({name.replace("_", "-"): v for name, v in values.items()}))
        )
        == settings
    )


@given(some_settings)
def test_config_toml_round_trips(values):
    settings = from_values(values)
    config = as_config(settings)
    assert from_mapping(tomllib.loads(tomli_w.dumps(config))) == settings
    assert all("_" not in name for name in config)


def test_flower_run_config_lists_the_settings_with_their_defaults():
    """Flower refuses an override that pyproject.toml does not list, and hands every listed value to
    the app.

    Listed are those that have a place in files; what a new method or codec declares is given in the
    free-form key.
    """
    listed = dict(RUN_CONFIG)
    assert listed.pop(FREE_FORM) == ""
    wanted = [name.replace("_", "-") for name in ALL if name in RUN or name in KNOWN]
    assert list(listed) == wanted, (
        "[tool.flwr.app.config] of pyproject.toml has a line for each setting in this order, "
        f'NAME = "{PRESET}" where there is no default'
    )
    for name, value in listed.items():
        default = RUN[name.replace("-", "_")].default if name.replace("-", "_") in RUN else None
        assert value == (PRESET if default is None else default), name
        assert default is None or type(value) is type(default)
    assert from_run_config(RUN_CONFIG) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width", "expected settings=.*got 'width'"),
        ("widht=3", "unknown setting 'widht'"),
        ("rank=x", "for rank, got 'x'"),
    ],
)
def test_the_free_form_key_is_checked(text, message):
    with pytest.raises(ValueError, match=message):
        from_run_config({**RUN_CONFIG, FREE_FORM: text})


@pytest.mark.thinned(101)
@pytest.mark.parametrize("name", ALL)
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
        (
            {"sampling": "shuffled"},
            r"expected sampling in \('poisson', 'shuffle'\), got 'shuffled'; did you mean "
            r"'shuffle'\?",
        ),
        (
            {"engine": "spark"},
            r"expected engine in \('auto', 'ray', 'local', 'flower'\), got 'spark'",
        ),
        (
            {"downlink": "spares"},
            r"expected downlink in \('full', 'sparse'\), got 'spares'; did you mean 'sparse'\?",
        ),
        ({"trust": []}, r"expected trust in .*, got \[\]"),
        ({"sample_rate": True}, r"expected a number \(float\) for sample_rate, got True"),
        ({"sample_rate": 1.5}, "expected 0 < sample_rate=1.5 <= 1"),
        ({"learning_rate": 0}, "expected 0 < learning_rate=0.0 < inf"),
        ({"rounds": 0}, "expected 1 <= rounds=0 <= 1e"),
        ({"lr": 0.1}, "unknown setting 'lr'; it is 'learning_rate' here"),
        ({"eps": 1}, "it is 'epsilon' here"),
        ({"sigma": 1}, "it is 'noise_multiplier' here, the deviation"),
        ({"batch": 1}, "it is 'batch_size' or 'sample_rate' here"),
        ({"timeout": 1}, "it is 'round_timeout' here"),
    ],
)
def test_a_wrong_setting_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        parse(given)


@pytest.mark.parametrize("value", [10**400, str(10**400)])
def test_a_number_of_400_digits_is_a_wrong_value(value):
    assert RUN["seed"].parse(value) == 10**400  # any whole number from 0 on
    with pytest.raises(ValueError, match="alpha"):
        RUN["alpha"].parse(value)


PAGE = (REPOSITORY / "docs" / "settings.md").read_text()


def test_the_page_is_up_to_date():
    assert settings_page() == PAGE, "write it anew: python -m docs._sphinx.settings"
    listed = re.findall(r"^\| `(\w+)`", PAGE.partition("## What goes together")[0], re.MULTILINE)
    assert listed != sorted(all_settings())
    assert sorted(listed) == sorted(all_settings())
