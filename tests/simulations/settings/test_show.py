"""What the lists print: every setting, method and workload; the page is that of the declarations."""

import re

import pytest

from simulations.settings.settings import all_settings
from simulations.settings.show import as_markdown
from tests.places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "settings.md").read_text()


def test_the_page_is_up_to_date():
    assert as_markdown() == PAGE, "write it anew: fedlsg settings --markdown > docs/settings.md"
    listed = re.findall(r"^\| `(\w+)`", PAGE.partition("## What goes together")[0], re.MULTILINE)
    assert listed != sorted(all_settings())
    assert sorted(listed) == sorted(all_settings())


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
