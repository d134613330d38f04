"""The command with made-up trials: its table, files, estimate, resumption, refusals. Then one real search."""

import csv
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from fedlsg.accounting import Event, compose
from fedlsg.privacy import Entry, Ledger
from simulations.compare.cells.worker import Job as CellJob
from simulations.compare.cells.worker import Outcome
from simulations.compare.lines import Line
from simulations.report.terminal import print_table
from simulations.report.words import epsilon_words
from simulations.rundir.rundir import RunDir
from simulations.settings.settings import from_mapping
from simulations.tune import place
from simulations.tune.axes import Axis
from simulations.tune.command import make_job, tune_command
from simulations.tune.output import Search, table
from tests.simulations.support.compare_cases import CHANCE, fake, result

TINY = {"clients": 2, "rounds": 2, "sample_rate": 0.05, "noise_multiplier": 2.0, "method": "dpsgd"}


def accuracy_of(given: dict[str, Any]) -> float:
    """The best learning rate is 1.6, twice twice the preset's."""
    return {0.2: 0.5, 0.4: 0.6, 0.8: 0.7, 1.6: 0.8, 3.2: 0.75}[given["learning_rate"]] + 0.001 * given["seed"] % 0.01


def finish(job: CellJob) -> Outcome:
    """A trial that leaves a config, a summary and a ledger of one client with one step."""
    run, given = RunDir(Path(job.path)), job.given
    run.ledgers.mkdir(parents=True)
    run.config.write_text(tomli_w.dumps({name.replace("_", "-"): value for name, value in given.items()}))
    accuracy = accuracy_of(given)
    summary = {
        "workload": "digits", "accuracy": accuracy, "loss": 1 - accuracy, "epsilon_max": 1.0, "private": True,
        "uplink_bytes": 10, "uplink_bytes_dense": 40, "downlink_bytes": 40, "wall_seconds": 3.0, "chance": CHANCE,
        "delta": 1e-5, "versions": {}, "diverged": False, "stopped": None,
    }  # fmt: skip
    run.summary.write_text(json.dumps(summary))
    values = {"steps": 2, "sample_rate": 0.05, "noise_multiplier": 2.0, "clip_norm": 1.0, "num_examples": 100}
    entry = Entry(client=0, round=1, attempt=0, mechanism="dp", **values)
    Ledger(run.ledger(0), client=0).charge(entry)
    return Outcome(status="done")


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, list[str]]]:
    """Run a search with made-up trials: (exit status, what is printed, what the workers were asked)."""

    def run(outcomes: Callable[[CellJob], Outcome | None] = finish, **options: Any) -> tuple[int, str, list[str]]:
        new_worker, log = fake(outcomes)

        @contextmanager
        def workers() -> Iterator[Any]:
            yield new_worker

        monkeypatch.setattr(place, "kept_process", workers)
        budget = options.pop("budget_minutes", None)
        given = {**TINY, **options.pop("given", {})}
        defaults = {"on": "held-out", "vary": ["learning_rate"], "seeds": 1, "trial_rounds": None}
        text = StringIO()
        try:
            job = make_job(given, out=str(tmp_path / "tuned"), **(defaults | options))
            status = tune_command(job, Console(file=text, width=150), budget_minutes=budget)
        finally:
            run.printed = " ".join(text.getvalue().split())  # type: ignore[attr-defined]
        return status, " ".join(text.getvalue().split()), [line for line in log if line.startswith("start")]

    return run


def test_the_grid_grows_until_the_best_is_bracketed(tune, tmp_path):
    status, printed, asked = tune()
    assert status == 0
    order = (0.4, 0.2, 0.8, 1.6, 3.2)
    assert asked == [f"start learning_rate{rate:g}-seed100" for rate in order]
    assert "one trial takes 3.0 s: at least 3 trials, about 6.0 s from here" in printed
    assert (
        "The next best point (learning_rate=3.2) is 5 points behind, with one seed (standard error of each" in printed
    )
    assert "at the edge" not in printed
    found = json.loads((tmp_path / "tuned" / "tune.json").read_text())
    assert (found["finished"], found["best"], found["edges"]) == (True, {"learning_rate": 1.6}, {})
    assert shlex.split(found["command"]) == [
        "fedlsg", "run", "digits", "--method", "dpsgd", "-c", "clients=2", "-c", "rounds=2", "-c", "sample_rate=0.05",
        "-c", "noise_multiplier=2", "-c", "learning_rate=1.6",
    ]  # fmt: skip
    assert f"run it: {found['command']}" in printed
    rows = list(csv.DictReader((tmp_path / "tuned" / "results.csv").read_text().splitlines()))
    assert [(row["trial"], row["status"]) for row in rows] == [(f"learning_rate{r:g}-seed100", "done") for r in order]
    points = list(csv.DictReader((tmp_path / "tuned" / "points.csv").read_text().splitlines()))
    assert [point["best"] for point in points] == ["False", "False", "False", "True", "False"]
    page = (tmp_path / "tuned" / "report.html").read_text()
    assert "What choosing costs in privacy" in page
    assert '<svg role="img"' in page
    assert "Best of the trials: learning_rate 1.6, with " in page
    assert (tmp_path / "tuned" / "plots" / "tune.png").exists()


def test_the_cost_of_choosing_is_the_composition_of_all_trials(tune):
    _, printed, _ = tune(seeds=2)
    own = Event(sample_rate=0.05, noise_multiplier=2.0, steps=2 * 10)
    spent = compose([own], delta=1e-5).upper
    assert (
        f"among 10 trials by held-out private rows: the epsilon of choosing is {epsilon_words(spent)} at delta 1e-05"
        in printed
    )
    least = compose([Event(sample_rate=0.05, noise_multiplier=2.0, steps=2 * 6)], delta=1e-5).upper
    before_the_second = f"the epsilon of choosing among 6 trials like this one: at least {least:.3f} at delta 1e-05"
    assert before_the_second in printed
    assert printed.index("CHOOSING COSTS PRIVACY") < printed.index("one trial takes")
    assert "paired over 2 seeds" in printed


def test_the_same_command_continues_and_computes_nothing_twice(tune):
    def stop(job: CellJob) -> Outcome:
        if job.given["learning_rate"] == 0.8:
            raise KeyboardInterrupt
        return finish(job)

    with pytest.raises(KeyboardInterrupt):
        tune(stop)
    assert "the same command continues this search" in tune.printed
    assert "best so far: fedlsg run digits --method dpsgd" in tune.printed
    _, printed, asked = tune()
    assert asked == [f"start learning_rate{rate}-seed100" for rate in (0.8, 1.6, 3.2)]
    whole = printed[printed.index("The next best point") :]
    _, again, asked = tune()
    assert asked == []
    assert again.endswith(whole)


def test_other_settings_in_the_same_folder_are_refused(tune):
    tune()
    with pytest.raises(ValueError, match=r"rounds = 2 \(now 3\); give the same settings, or another --out"):
        tune(given={"rounds": 3})


def test_out_of_time_it_says_that_it_is_not_finished(tune, tmp_path):
    status, printed, _ = tune(
        lambda job: None if job.given["learning_rate"] == 0.8 else finish(job), budget_minutes=0.01
    )
    assert status == 0
    assert "the search is not finished; the same command continues it" in printed
    assert json.loads((tmp_path / "tuned" / "tune.json").read_text())["finished"] is False


def test_the_edge_is_printed(tune):
    _, printed, _ = tune(vary=["learning_rate=0.2,0.4,0.8"])
    assert "The best learning_rate, 0.8, is at the edge: it is the highest of the values given" in printed


def test_a_first_trial_that_fails_ends_the_search_with_its_reason(tune):
    with pytest.raises(RuntimeError, match=r"the first trial failed: rank too big \(its log: .*seed100.log\)"):
        tune(lambda job: Outcome(status="failed", reason="rank too big"))


def test_a_later_trial_that_fails_is_the_worst_and_is_named(tune):
    def outcomes(job: CellJob) -> Outcome:
        return Outcome(status="failed", reason="no room") if job.given["learning_rate"] == 0.8 else finish(job)

    _, printed, _ = tune(outcomes)
    assert "learning_rate0.8-seed100: failed: no room" in printed
    assert printed.endswith("learning_rate=0.4")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on": None}, r"say with --on which rows the trials use: data:NAME or data:PATH .*held-out .*costs privacy"),
        ({"on": "test"}, "expected --on held-out, data:NAME|PATH or synthetic, got 'test'"),
        ({"on": "data:"}, "expected --on held-out"),
        ({"seeds": 0}, "expected --seeds 0 >= 1"),
        ({"trial_rounds": 0}, "expected rounds=0 >= 1"),
        ({"given": {"seed": 3}}, "seed is given to the trials by the search: say it as --seeds"),
        ({"given": {"public_rows": "data:digits"}}, "say it as --on"),
        ({"given": {"rounds": 0}}, "expected rounds=0 >= 1"),
        ({"vary": ["rank"]}, "unknown setting of dpsgd to vary 'rank'"),
        ({"budget_minutes": 0}, "expected --budget-minutes 0 > 0"),
        ({"on": "data:digits"}, "public_rows=data:digits is refused: it is the run's own workload"),
        ({"on": "data:nowhere.npz"}, "there is no file .*nowhere.npz, and no workload of that name"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(options, words, tune, tmp_path):
    with pytest.raises(ValueError, match=words):
        tune(**options)
    assert not (tmp_path / "tuned").exists()


def test_shorter_trials_leave_the_rounds_of_the_run_alone(tune):
    asked: list[dict[str, Any]] = []

    def outcomes(job: CellJob) -> Outcome:
        asked.append(job.given)
        return finish(job)

    _, printed, _ = tune(outcomes, trial_rounds=1, given={"holdout": 0.25})
    assert {(given["rounds"], given["holdout"]) for given in asked} == {(1, 0.25)}
    assert "-c rounds=2" in printed
    assert "holdout" not in printed.split("run it:")[1]
    assert from_mapping(asked[0]).holdout == 0.25


def test_the_table_of_all_usual_settings_fits_80_columns():
    """The headers are whole; seconds are left out first."""
    names = ("learning_rate", "clip_norm", "rank", "out_rank", "refresh_rounds")
    axes = [Axis(name=name, values=(1,), start=0, listed=True) for name in names]
    line = Line(runs=(result(0.8),))
    found = Search(
        title="", rows="", axes=axes, lines={(0,) * 5: line}, best=None, edges={}, finished=True, privacy=(),
        costs=False, notes=(), command="", made_by="",
    )  # fmt: skip
    text = StringIO()
    print_table(table(found), Console(file=text, width=80))
    header = text.getvalue().splitlines()[0].split()
    assert header == [*names, "accuracy,", "%", "n", "uplink"]


def test_a_real_search_on_synthetic_rows(fedlsg, tmp_path):
    """Two trials of digits, then the same command again, from the folder."""
    settings = [word for name, value in TINY.items() for word in ("-c", f"{name}={value}")]
    words = ("tune", "digits", *settings, "--on", "synthetic", "--vary", "learning_rate=0.2,0.4", "--out", "here")
    status, out, err = fedlsg(*words)
    assert (status, err) == (0, "")
    printed = " ".join(out.split())
    assert "Choosing costs no privacy: the trials use synthetic inputs with labels of a random teacher alone" in printed
    assert "epsilon of choosing" not in printed
    found = json.loads((tmp_path / "here" / "tune.json").read_text())
    assert [point["n"] for point in found["points"]] == [1, 1]
    assert found["edges"]
    assert "public_rows" not in found["command"]
    assert "train_rows" not in found["command"]
    (run, _) = sorted((tmp_path / "here" / "cells").iterdir())
    config = (run / "config.toml").read_text()
    assert 'public-rows = "synthetic"' in config
    assert "train-rows = 1437" in config
    log = (tmp_path / "here" / "logs" / f"{run.name}.log").read_text()
    assert "the clients hold public rows: synthetic" in log
    assert "646 to 647 examples" in log  # nine tenths of 1,437 in two parts
    before = {path: path.read_bytes() for path in (tmp_path / "here" / "cells").rglob("*") if path.is_file()}
    assert fedlsg(*words)[0] == 0
    assert {path: path.read_bytes() for path in (tmp_path / "here" / "cells").rglob("*") if path.is_file()} == before
