"""The token of a Ray of our own, and what a run says about a Ray that asks for none."""

import os

import pytest

from fedlsg.simulations.engines import door
from fedlsg.simulations.engines.door import MODE, PATH, TOKEN, locked, say_what_is_open


@pytest.fixture(autouse=True)
def theirs(monkeypatch):
    """What a user has set for a cluster."""
    monkeypatch.setenv(MODE, "disabled")
    monkeypatch.setenv(TOKEN, "theirs")
    monkeypatch.delenv(PATH, raising=False)
    # else the Ray of other tests in this process loses its token, and ends the process
    monkeypatch.setattr(door, "_read_again", lambda: None)


def test_a_token_is_new_private_and_not_in_the_environment(tmp_path):
    tokens = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with locked(tmp_path / name):
            file = tmp_path / name / "token"
            tokens.append(file.read_text())
            assert file.stat().st_mode & 0o777 == 0o600
            assert (os.environ[MODE], os.environ[PATH], os.environ.get(TOKEN)) == (
                "token",
                str(file),
                None,
            )
            assert tokens[-1] not in os.environ.values()
        assert (os.environ[MODE], os.environ.get(PATH), os.environ[TOKEN]) == (
            "disabled",
            None,
            "theirs",
        )
    assert tokens[0] != tokens[1]
    assert [len(bytes.fromhex(token)) for token in tokens] == [32, 32]


def test_only_a_ray_without_a_token_is_spoken_of(capsys, monkeypatch):
    say_what_is_open()
    (line,) = capsys.readouterr().err.splitlines()
    assert "asks nobody for a token" in line
    assert "RAY_AUTH_MODE=token" in line
    monkeypatch.setenv(MODE, "token")
    say_what_is_open()
    assert capsys.readouterr().err == ""
