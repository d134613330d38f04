"""What the lists print: every setting, method and workload; the page is that of the declarations."""

import io
import re

import pytest
from rich.console import Console

import strategies
from fedlsg.payload.codecs import summaries
from fedlsg.version import version
from simulations import workloads
from simulations.settings.settings import all_settings
from simulations.settings.show import as_markdown, settings_command
from tests.places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "settings.md").read_text()


def test_the_page_is_up_to_date():
    assert as_markdown() == PAGE, "write it anew: fedlsg settings --markdown > docs/settings.md"
    listed = re.findall(r"^\| `(\w+)`", PAGE.partition("## What goes together")[0], re.MULTILINE)
    assert listed != sorted(all_settings())
    assert sorted(listed) == sorted(all_settings())


def test_every_setting_is_listed_at_80_columns(fedlsg):
    status, out, err = fedlsg("settings", width=80)
    assert (status, err) == (0, "")
    assert [name for name in all_settings() if not re.search(rf"^{name} ", out, re.MULTILINE)] == []
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("learning_rate", ("Learning rate of the server.", "0 < x < inf", "0.1", "server of every method", "digits")),
        ("sample-rate", ("Poisson rate q", "0 < x <= 1", "every run")),
        ("rank", ("Rank r of the carriers.", "8 (fed-svd, ffa-lora, lora, lsg-lora)", "dp-powersgd")),
        ("round_timeout", ("seconds", "3600.0")),
        ("prune", ("none, random, synflow or dp-snip", "dp-ssgd")),
    ],
)
def test_one_setting_is_shown_whole(name, parts, fedlsg):
    status, out, _ = fedlsg("settings", name)
    assert status == 0
    words = " ".join(out.split())
    assert [part for part in parts if part not in words] == []


@pytest.mark.parametrize(
    ("name", "meant"), [("lr", "learning_rate"), ("sparcity", "sparsity"), ("batch", "batch_size")]
)
def test_an_unknown_setting_is_not_shown(name, meant, fedlsg):
    status, out, err = fedlsg("settings", name)
    assert (status, out) == (1, "")
    assert err == f"fedlsg: error: unknown setting {name!r}; did you mean {meant!r}?\n"


def test_methods_and_workloads_are_listed(fedlsg):
    for command, names in (("methods", strategies.names()), ("workloads", workloads.names())):
        status, out, _ = fedlsg(command, width=80)
        assert status == 0
        assert [name for name in names if not re.search(rf"^{name}  +\S", out, re.MULTILINE)] == []


def test_the_version(fedlsg):
    assert fedlsg("--version") == (0, f"fedlsg {version()}\n", "")


def test_a_setting_of_a_codec_names_it():
    console = Console(width=200, file=io.StringIO())
    settings_command("noise_floor_step", False, console)
    assert re.search(r"used by +codec noise-floor\n", re.sub(" +\n", "\n", console.file.getvalue()))


def test_the_setting_codec_lists_the_codecs():
    console = Console(width=200, file=io.StringIO())
    settings_command("codec", False, console)
    for name, line in summaries().items():
        assert f"{name} " in console.file.getvalue()
        assert line
        assert line in console.file.getvalue()
