"""What the lists print: every setting, method and workload; the page is that of the declarations."""

import re

from simulations.settings.settings import all_settings
from simulations.settings.show import as_markdown
from tests.places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "settings.md").read_text()


def test_the_page_is_up_to_date():
    assert as_markdown() == PAGE, "write it anew: fedlsg settings --markdown > docs/settings.md"
    listed = re.findall(r"^\| `(\w+)`", PAGE.partition("## What goes together")[0], re.MULTILINE)
    assert listed != sorted(all_settings())
    assert sorted(listed) == sorted(all_settings())
