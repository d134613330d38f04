"""A user's traceback ends at the user's line and one of fedlsg, unless more is asked for; errors of
a user's own code keep all frames.
"""

import re
import traceback

import pytest
import torch
from torch import nn

import fedlsg
from fedlsg.simulations.cli.command_line import main
from fedlsg.tensors import spaced
from fedlsg.user_code import short_traceback as module
from fedlsg.user_code.failure import describe
from fedlsg.user_code.short_traceback import short_traceback


@short_traceback
def outer(how: str, code=None) -> None:
    inner(how, code)


def inner(how: str, code) -> None:
    if how == "explained":
        try:
            int("x")
        except ValueError as error:
            raise ValueError("expected a number: give one") from error
    if how == "not explained":
        int("x")
    code()


def wrong() -> None:
    raise ValueError("of a user's own")


def frames(error: BaseException) -> list[str]:
    return [step.name for step in traceback.extract_tb(error.__traceback__)]


@pytest.fixture(autouse=True)
def as_fedlsg(monkeypatch):
    """The frames of this file count as those of fedlsg."""
    monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setattr(module, "OWN", (__file__,))


def test_an_explained_error_has_one_frame_and_no_cause(monkeypatch):
    monkeypatch.setattr(module, "left_users_code", lambda error: False)
    with pytest.raises(ValueError, match="give one") as found:
        outer("explained")
    assert frames(found.value)[1:] == ["shortened"]
    assert found.value.__cause__ is None
    monkeypatch.setenv(module.VARIABLE, module.FULL)
    with pytest.raises(ValueError, match="give one") as found:
        outer("explained")
    assert frames(found.value)[1:] == ["shortened", "outer", "inner"]
    assert found.value.__cause__ is not None


def test_what_no_raise_of_fedlsg_made_keeps_its_frames(monkeypatch):
    monkeypatch.setattr(module, "left_users_code", lambda error: False)
    with pytest.raises(ValueError, match="invalid literal") as found:
        outer("not explained")
    assert frames(found.value)[1:] == ["shortened", "outer", "inner"]


def test_an_error_of_a_users_code_keeps_its_frames():
    with pytest.raises(ValueError, match="of a user's own") as found:
        outer("", wrong)
    assert frames(found.value)[1:] == ["shortened", "outer", "inner", "wrong"]


def test_a_refused_argument_of_the_public_face_has_one_frame(monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv(module.VARIABLE, raising=False)
    calls = (
        lambda: fedlsg.simulate(workload="digits", epsilon=-1, quiet=True),
        lambda: fedlsg.PrivateStep(nn.Linear(2, 2), nn.CrossEntropyLoss(), num_examples=9, steps=0),
        lambda: fedlsg.recipe("lgs"),
        lambda: fedlsg.load_run("nowhere"),
        lambda: fedlsg.Workload(model=nn.Linear(2, 2), train=0, loss=torch.nn.MSELoss()),
    )
    for call in calls:
        with pytest.raises(ValueError) as found:  # noqa: PT011 - its frames are what is tested
            call()
        names = frames(found.value)
        assert names[-1] == "shortened", names
        assert len([name for name in names[2:] if name != "__init__"]) == 1, names


def test_a_failure_in_fedlsgs_own_files_is_said_to_be_there():
    """A mistake in them, or a function that they were given and cannot call."""
    with pytest.raises(TypeError) as found:
        spaced(None, 2)
    assert re.search(
        r"\(in fedlsg, tensors\.py, line \d+: FEDLSG_TRACEBACK=full shows", words_of(found.value)
    )


def words_of(error: BaseException) -> str:
    """As ``describe``, of an error without the frames of this test."""
    return describe(error.with_traceback(error.__traceback__.tb_next))


def test_a_command_shows_all_lines_if_it_is_asked_to(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedlsg", "run", "no-such-workload"])
    with pytest.raises(SystemExit):
        main()
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv(module.VARIABLE, module.FULL)
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert said.index("Traceback") < said.index("fedlsg: error")


def test_ctrl_c_has_no_frame_of_ours():
    @short_traceback
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as found:
        interrupted()
    names = [entry.name for entry in found.traceback]
    assert "interrupted" not in names
    assert names[-1] == "shortened"
