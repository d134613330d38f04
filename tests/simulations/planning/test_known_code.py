"""The user's own list of code that he ran: owner-only, bounded, whole under parallel runs, and
never a crash.
"""

import os
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from fedlsg.simulations.planning.trust import CODE, is_known

DIGEST = "0" * 64


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_what_is_remembered_is_known_at_its_path_alone():
    assert not is_known(DIGEST, "/a/mine.py")
    CODE.remember([(DIGEST, "/a/mine.py"), ("", "/a/missing.py")])
    assert is_known(DIGEST, "/a/mine.py")
    assert not is_known(DIGEST, "/b/mine.py")
    assert not is_known("1" * 64, "/a/mine.py")
    assert not is_known("", "/a/missing.py")


def test_only_its_owner_reads_it():
    CODE.remember([(DIGEST, "/a/mine.py")])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (CODE.place, CODE.place.parent)] == [
        0o600,
        0o700,
    ]


@pytest.mark.parametrize("weak", ["file", "folder", "link"])
def test_a_list_that_others_could_have_written_is_not_believed(weak, home):
    CODE.remember([(DIGEST, "/a/mine.py")])
    if weak == "link":
        CODE.place.rename(home / "elsewhere")
        CODE.place.symlink_to(home / "elsewhere")
    else:
        (CODE.place if weak == "file" else CODE.place.parent).chmod(0o777)
    assert not is_known(DIGEST, "/a/mine.py")


def one(number: int) -> None:
    CODE.remember([(DIGEST, f"/{number}.py")])


def test_parallel_runs_lose_nothing():
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(one, range(40)))
    assert all(is_known(DIGEST, f"/{number}.py") for number in range(40))
    assert os.listdir(CODE.place.parent) == [CODE.place.name]
