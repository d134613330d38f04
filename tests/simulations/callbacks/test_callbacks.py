"""Callbacks around a run: when they are called, how one stops a run, and what a stopped run says of itself."""

import pytest
import torch

import fedlsg
from simulations.callbacks.callback import Watched
from tests.simulations.support.own import quick


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


def test_a_stopped_run_is_whole_says_why_and_spends_no_more(tmp_path):
    whole, notes = quick(tmp_path / "whole", rounds=3), Notes(stop=1)
    found = quick(tmp_path / "run", rounds=3, callbacks=[notes])
    assert notes.seen[-1] == ("end", 1)
    assert (found.summary["rounds"], found.summary["stopped"]) == (1, "enough")
    assert found.epsilon < whole.epsilon
    assert {"summary.json", "model.safetensors", "ledger.jsonl"} <= {path.name for path in found.directory.iterdir()}


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


# --- early stopping, the best model ---


def rows(*values, monitor="accuracy"):
    return [{"round": number, monitor: value} for number, value in enumerate(values, 1)]


def stopped_after(callback, *values, monitor="accuracy"):
    """The round after which a run with these values stops, None if it does not."""
    callback.on_begin(watched())
    for row in rows(*values, monitor=monitor):
        try:
            callback.on_round(row)
        except fedlsg.StopRun:
            return row["round"]
    return None


def watched(*earlier):
    return Watched(path=None, settings={}, rows=list(earlier), save_model=lambda folder: None)


def test_early_stopping_waits_for_evaluations_without_improvement():
    assert stopped_after(fedlsg.EarlyStopping(patience=2), 0.1, 0.3, 0.2, 0.25, 0.4) == 4
    assert stopped_after(fedlsg.EarlyStopping(patience=3), 0.1, 0.3, 0.2, 0.25, 0.4) is None
    assert stopped_after(fedlsg.EarlyStopping(patience=2), 0.3, None, None, None, 0.2) is None, "not evaluated"
    assert stopped_after(fedlsg.EarlyStopping(patience=1, min_delta=0.1), 0.3, 0.35) == 2
    assert stopped_after(fedlsg.EarlyStopping(monitor="loss", patience=1), 2.0, 1.0, 1.5, monitor="loss") == 3
    assert stopped_after(fedlsg.EarlyStopping(patience=1, mode="min"), 0.3, 0.2, 0.25) == 3
