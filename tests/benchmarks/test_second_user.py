"""Ten tries of a second user of the machine: each fails."""

import pytest

from benchmarks.privacy import second_user
from tests.other_user import needs_root


@needs_root
@pytest.mark.slow
@pytest.mark.ray
def test_every_try_of_another_user_fails(capfd):
    second_user.main()
    rows = [line for line in capfd.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 10
    harmed = ("frozen", "token: True", "running: True", "is in use by", "summed gradients")
    assert [row for row in rows for words in harmed if words in row] == []
