"""Which round is best: early-stopping and best-model by a metric of a user's own."""

import json

import pytest
from torch import nn

import fedlsg
from tests.simulations.support.own import TEST, TRAIN, quick, refused

NAN = float("nan")


def series(*values):
    """A metric that gives these values, one a round: the check before round 1 leaves no trace."""
    left = list(values)
    return lambda outputs, targets: left.pop(0) if len(left) > 1 else left[0]


def kept_round(folder):
    return json.loads((folder / "best" / "config.json").read_text())["round"]


RISING, FALLING = (1.0, 2.0, 3.0), (3.0, 2.0, 1.0)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("name", "declare", "mode", "values", "best"),
    [
        ("mae", None, "auto", RISING, 1),
        ("rmse", None, "auto", FALLING, 3),
        ("error_rate", None, "auto", RISING, 1),
        ("macro_f1", None, "auto", RISING, 3),
        ("gini", fedlsg.Lower, "auto", RISING, 1),
        ("gini", fedlsg.Higher, "auto", RISING, 3),
        ("mae", fedlsg.Higher, "auto", RISING, 3),
        ("gini", None, "min", RISING, 1),
        ("gini", None, "max", RISING, 3),
        ("mae", None, "max", RISING, 3),
        ("auc", None, "auto", (NAN, 0.5, float("inf")), 2),
    ],
)
def test_the_best_round_is_kept(name, declare, mode, values, best, tmp_path):
    metric = series(*values)
    quick(
        tmp_path / "run",
        rounds=3,
        metrics={name: metric if declare is None else declare(metric)},
        callbacks=[fedlsg.BestModel(monitor=name, mode=mode)],
    )
    assert kept_round(tmp_path / "run") == best


@pytest.mark.slow
def test_an_error_that_rises_stops_a_run_and_one_that_falls_does_not(tmp_path):
    early = "early-stopping monitor=mae patience=2"
    stopped = quick(tmp_path / "a", rounds=4, metrics={"mae": series(1, 2, 3, 4)}, callbacks=early)
    assert "mae was best in round 1 (1)" in stopped.summary["stopped"]
    whole = quick(tmp_path / "b", rounds=4, metrics={"mae": series(4, 3, 2, 1)}, callbacks=early)
    assert (whole.summary["stopped"], len(whole.rounds)) == (None, 4)


@pytest.mark.parametrize(
    "callback", [fedlsg.EarlyStopping, fedlsg.BestModel, "early-stopping", "best-model"]
)
@pytest.mark.parametrize("name", ["gini", "1 - accuracy"])
def test_an_unknown_direction_is_asked_for_before_anything_is_written(callback, name, tmp_path):
    by_name = isinstance(callback, str)
    given = f"{callback} monitor='{name}'" if by_name else [callback(monitor=name)]
    function = "gini" if name == "gini" else "function"
    with refused(
        f"monitor={name!r}",
        f"metrics={{{name!r}: fedlsg.Lower({function})}}",
        f"metrics={{{name!r}: fedlsg.Higher({function})}}",
        "mode='min'",
        "mode='max'",
    ):
        quick(tmp_path / "run", metrics={name: series(1.0)}, callbacks=given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (fedlsg.EarlyStopping(monitor="mea"), ("unknown monitor 'mea'", "did you mean 'mae'")),
        (fedlsg.BestModel(monitor="uplink_bytes"), ("expected one of accuracy, loss, mae",)),
        (fedlsg.BestModel(monitor="mae", mode="lowest"), ("unknown mode 'lowest'",)),
    ],
)
def test_what_is_not_measured_is_refused_before_anything_is_written(callback, words, tmp_path):
    with refused(*words):
        quick(tmp_path / "run", metrics={"mae": series(1.0)}, callbacks=[callback])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_accuracy_is_refused_where_targets_are_no_classes(tmp_path):
    numbers = {"train": (TRAIN[0], TRAIN[0][:, :1]), "test": (TEST[0], TEST[0][:, :1])}
    settings = {"model": lambda: nn.Linear(8, 1), "loss": nn.MSELoss(), **numbers}
    with refused("unknown monitor 'accuracy', expected one of loss"):
        quick(tmp_path / "run", callbacks="best-model", **settings)
    assert not (tmp_path / "run").exists()
    quick(tmp_path / "run", callbacks="best-model monitor=loss", **settings)
    assert kept_round(tmp_path / "run") == 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("mode", ["auto", "min", "max"])
def test_what_is_never_a_finite_number_ends_a_run_and_says_so_first(value, mode, tmp_path, capsys):
    callbacks = f"early-stopping monitor=auc patience=2 mode={mode}; best-model monitor=auc"
    metrics = {"auc": lambda outputs, targets: value}
    found = quick(tmp_path / "run", rounds=5, metrics=metrics, callbacks=callbacks, quiet=False)
    assert len(found.rounds) == 2
    assert found.summary["stopped"] == ("early stopping: auc was no finite number in 2 evaluations")
    said = " ".join(capsys.readouterr().out.split())
    assert f"metric 'auc' of the initial model is {value}" in said
    assert not (tmp_path / "run" / "best").exists()
    text = (tmp_path / "run" / "summary.json").read_text()
    assert "NaN" not in text, "no word of JSON"
    assert "Infinity" not in text
    assert json.loads(text)["metrics"] == {"auc": str(value)}


def test_control_a_finite_metric_is_not_mentioned(tmp_path, capsys):
    quick(tmp_path / "run", metrics={"auc": series(0.5)}, quiet=False)
    assert "of the initial model is" not in capsys.readouterr().out


@pytest.mark.slow
def test_numbers_after_some_that_are_none_count(tmp_path):
    found = quick(
        tmp_path / "run",
        rounds=8,
        metrics={"auc": series(NAN, 0.5, NAN, 0.6, NAN, 0.6)},
        callbacks="early-stopping monitor=auc patience=2",
    )
    assert "auc was best in round 4 (0.6)" in found.summary["stopped"]


@pytest.mark.slow
def test_a_resumed_run_asks_before_its_next_round(tmp_path):
    metrics = {"gini": series(1.0)}

    def stop(row):
        raise fedlsg.StopRun("enough")

    quick(tmp_path / "run", rounds=2, metrics=metrics, callbacks=[stop])
    before = [path.read_bytes() for path in sorted((tmp_path / "run" / "ledger").iterdir())]
    again = {"rounds": 2, "metrics": metrics, "resume": True}
    with refused("monitor='gini'", "mode='min'"):
        quick(tmp_path / "run", callbacks=[fedlsg.BestModel(monitor="gini")], **again)
    after = [path.read_bytes() for path in sorted((tmp_path / "run" / "ledger").iterdir())]
    assert before == after != []
    quick(tmp_path / "run", callbacks=[fedlsg.BestModel(monitor="gini", mode="min")], **again)
    assert len(fedlsg.load_run(tmp_path / "run").rounds) == 2
