"""The setting ``callbacks``: names, parameters, files of a user's own; in Python and in config.toml."""

import pytest

import fedlsg
from fedlsg import user_code
from simulations.callbacks.named import named
from simulations.rundir.results import read_run
from simulations.rundir.rundir import RunDir
from tests.simulations.support.own import quick

MINE = """
import fedlsg

def watch(row):
    print("round", row["round"])

MADE = []

class Limit(fedlsg.Callback):
    def __init__(self, *, rounds: int = 2, word: str = "limit"):
        MADE.append(word)
        self.rounds, self.word = rounds, word

    def on_round(self, row):
        if row["round"] >= self.rounds:
            raise fedlsg.StopRun(self.word)
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "my callbacks.py"
    file.write_text(MINE)
    user_code.permit(*(f"{file}:{name}" for name in ("watch", "MADE", "Limit")))
    return file


def test_names_with_parameters():
    first, second = named("early-stopping patience=3 monitor=loss; best-model")
    assert (type(first), first.patience, first.monitor) == (fedlsg.EarlyStopping, 3, "loss")
    assert type(second) is fedlsg.BestModel
    assert named(None) == named("") == named(" ; ") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("early-stoping", "unknown name 'early-stoping'; did you mean 'early-stopping'"),
        ("best-model patience=3", "unknown parameter of best-model 'patience'"),
        ("early-stopping 3", "expected '3' of early-stopping as parameter=value"),
        ("early-stopping patience=0", "expected patience=0 >= 1"),
        ("early-stopping patience=many", "patience"),
        ("missing.py:watch", "there is no file"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    user_code.permit("missing.py:watch")
    with pytest.raises(ValueError, match=message):
        named(text)


def test_a_class_of_a_file_stops_a_run_and_the_setting_holds_its_absolute_path(mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = quick(tmp_path / "run", rounds=3, callbacks="'my callbacks.py:Limit' rounds=1 word=enough")
    assert (found.summary["rounds"], found.summary["stopped"]) == (1, "enough")
    assert user_code.load(f"{mine}:MADE", "list") == ["enough"], "made once"
    assert str(mine) in RunDir(tmp_path / "run").read_config().callbacks
    assert read_run(tmp_path / "run").summary["stopped"] == "enough"
