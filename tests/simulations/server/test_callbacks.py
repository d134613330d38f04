"""Callbacks around a run, by name or given: when they are called, how one stops a run."""

import json

import pytest
import torch

import fedlsg
from fedlsg import user_code
from fedlsg.simulations.planning.trust import CODE_RECORD
from fedlsg.simulations.server.callbacks import CallbackList
from fedlsg.simulations.server.named_callbacks import named
from fedlsg.simulations.settings.settings import callback_words, callbacks_with, code_in
from fedlsg.simulations.storage.results import read_run
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.own import fresh, quick, refused


class Notes(fedlsg.Callback):
    """Writes down what it is called with; ``fails`` in a round."""

    def __init__(self, stop=None, fail=None):
        self.seen, self.stop, self.fail = [], stop, fail

    def on_begin(self, run):
        self.run = run
        self.seen.append(("begin", [row["round"] for row in run.rows]))

    def on_round(self, row):
        self.seen.append(("round", row["round"]))
        if row["round"] == self.stop:
            raise fedlsg.StopRun("enough")
        if row["round"] == self.fail:
            raise KeyError("mine")

    def on_end(self, summary):
        self.seen.append(("end", summary["rounds"]))

    def on_failure(self, error):
        self.seen.append(("failure", str(error)))


@pytest.mark.slow
def test_a_stopped_run_is_whole_says_why_and_spends_no_more(tmp_path):
    whole, notes = quick(tmp_path / "whole", rounds=3, reproducible=False), Notes(stop=1)
    found = quick(tmp_path / "run", rounds=3, callbacks=[notes], reproducible=False)
    assert notes.seen[-1] == ("end", 1)
    assert (found.summary["rounds"], found.summary["stopped"]) == (1, "enough")
    assert found.epsilon < whole.epsilon
    assert {"summary.json", "model.safetensors", "ledger.jsonl"} <= {
        path.name for path in found.directory.iterdir()
    }


def test_every_method_of_callback_is_forwarded():
    """By construction, as ``on_plan``, which the list does not define."""

    class Stops(Notes):
        def on_plan(self, directions):
            self.seen.append(dict(directions))
            directions["mine"] = None
            raise fedlsg.StopRun("enough")

    assert {name for name in vars(fedlsg.Callback) if name[0] != "_"} <= vars(CallbackList).keys()
    first, second = Stops(), Stops()
    several = CallbackList([first, second])
    several.on_plan({"loss": False})
    assert first.seen == second.seen == [{"loss": False}]
    with pytest.raises(fedlsg.StopRun, match="enough"):
        several.on_round({"round": 1})
    assert second.seen[-1] == ("round", 1)


@pytest.mark.slow
def test_a_stopped_run_may_be_continued(tmp_path):
    whole = quick(tmp_path / "whole", rounds=3)
    quick(tmp_path / "run", rounds=3, callbacks=[Notes(stop=1)])
    notes = Notes()
    found = quick(tmp_path / "run", rounds=3, resume=True, callbacks=[notes])
    assert notes.seen == [("begin", [1]), ("round", 2), ("round", 3), ("end", 3)]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value)
    assert found.summary["stopped"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (fedlsg.EarlyStopping, "callbacks=type: expected a list"),
        ([fedlsg.EarlyStopping], r"expected an instance, EarlyStopping\(\)"),
        ([3], "callbacks holds int: expected a Callback"),
    ],
)
def test_anything_else_is_refused_before_a_folder_is_made(given, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        quick(tmp_path / "run", callbacks=given)
    assert not (tmp_path / "run").exists()


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
    assert callback_words("'a;b.py:f' x=';y' ;; best-model") == [
        ["a;b.py:f", "x=;y"],
        ["best-model"],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("early-stoping", "unknown name 'early-stoping'; did you mean 'early-stopping'"),
        ("best-model patience=3", "unknown parameter of best-model 'patience'"),
        ("early-stopping 3", "expected '3' of early-stopping as parameter=value"),
        ("early-stopping patience=0", "expected patience=0 >= 1"),
        ("early-stopping patience=many", "patience"),
        ("missing.py:watch", "there is no file"),
        ("best-model; 'mine.py:f", "callbacks=best-model; 'mine.py:f: No closing quotation"),
        ("best-model\\", "No escaped character"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    user_code.permit("missing.py:watch")
    with pytest.raises(ValueError, match=message):
        named(text)


@pytest.mark.parametrize(
    "reader",
    [named, lambda text: code_in({"callbacks": text}), lambda text: callbacks_with(text, str)],
)
def test_each_reader_of_the_setting_names_it(reader):
    with pytest.raises(ValueError, match="callbacks=best-model 'x: No closing quotation; expected"):
        reader("best-model 'x")


def test_a_class_of_a_file_stops_a_run_and_the_setting_holds_its_absolute_path(
    mine, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = quick(
        tmp_path / "run", rounds=3, callbacks="'my callbacks.py:Limit' rounds=1 word=enough"
    )
    assert (found.summary["rounds"], found.summary["stopped"]) == (1, "enough")
    assert user_code.load(f"{mine}:MADE", "list") == ["enough"], "made once"
    assert str(mine) in RunDir(tmp_path / "run").read_config().callbacks
    assert read_run(tmp_path / "run").summary["stopped"] == "enough"


@pytest.fixture
def tracking(tmp_path, monkeypatch):
    """MLflow's client, on a store of this test."""
    mlflow = pytest.importorskip("mlflow", reason="pip install 'fedlsg[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return mlflow.MlflowClient()


def only_run(client):
    (experiment,) = (one for one in client.search_experiments() if one.name == "mine")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


@pytest.mark.slow
def test_mlflow_has_settings_rounds_and_results(tracking, tmp_path):
    found = quick(
        tmp_path / "run", rounds=2, callbacks=[fedlsg.MLflow(experiment="mine")], reproducible=False
    )
    run = only_run(tracking)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["rounds"] == "2"
    assert str(tmp_path) not in json.dumps(run.data.params), "no folder of this machine"
    assert run.data.metrics["final/accuracy"] == found.summary["accuracy"]
    history = tracking.get_metric_history(run.info.run_id, "epsilon/max")
    assert [(one.step, one.value) for one in history] == [
        (row["round"], row["epsilon_max"]) for row in found.rounds
    ]


@pytest.mark.slow
def test_without_an_account_the_way_out_is_named(tmp_path, monkeypatch):
    """The error is that of a process that never logged in: init remembers earlier runs of this
    process.
    """
    wandb = pytest.importorskip("wandb", reason="pip install 'fedlsg[wandb]'")

    def init(**settings):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(
        ValueError, match=r"callbacks=wandb: No API key.* \(WANDB_MODE=offline needs no account\)"
    ):
        quick(tmp_path / "run", rounds=2, callbacks=[fedlsg.WeightsAndBiases()])


def test_a_folder_that_is_a_run_has_the_record_of_its_code(mine, tmp_path, monkeypatch):
    """However early the process that began it was killed: ``resume`` would say it has none."""

    def killed(self: RunDir, settings: object) -> None:
        assert (self.path / CODE_RECORD).exists()
        raise RuntimeError("killed")

    monkeypatch.setattr(RunDir, "write_config", killed)
    with pytest.raises(RuntimeError, match="killed"):
        quick(tmp_path / "run", callbacks=f"'{mine}:Limit' rounds=1 word=enough")
    assert not RunDir(tmp_path / "run").config.exists()


def test_a_class_without_init_takes_no_parameters(tmp_path):
    file = tmp_path / "plain.py"
    file.write_text("import fedlsg\n\n\nclass Plain(fedlsg.Callback):\n    pass\n")
    with fresh():
        user_code.permit(f"{file}:Plain")
        (plain,) = named(f"{file}:Plain")
        assert isinstance(plain, fedlsg.Callback)
        with refused("parameter of", "target"):
            named(f"{file}:Plain target=1")
