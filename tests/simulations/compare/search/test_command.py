"""A search with made-up trials: its order, files, cost, resumption and refusals. Then one with real
trials.
"""

import csv
import json
import tomllib
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedlsg.accounting import Event, compose
from fedlsg.simulations.compare.grid.cell_worker import Job as CellJob
from fedlsg.simulations.compare.grid.cell_worker import Outcome
from fedlsg.simulations.compare.grid.grid_file import from_toml
from fedlsg.simulations.compare.grid.runner import Limits
from fedlsg.simulations.compare.search import TRIALS as BY_DEFAULT
from fedlsg.simulations.compare.search import make_job, search_command, search_files, trials
from fedlsg.simulations.compare.search.trials import FIRST_SEED
from fedlsg.simulations.report.words import epsilon_words
from tests.simulations.support.compare_cases import fake
from tests.simulations.support.search_cases import SPENT, accuracy_of, finish

TINY = {"clients": 2, "rounds": 2, "sample_rate": 0.05, "noise_multiplier": 2.0}
SPACE = "learning_rate=log:0.25..4; rank=int:2..16"


@pytest.fixture
def search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, list[str]]]:
    """Run a search with made-up trials: (exit status, what is printed, what the workers were
    asked).
    """

    def run(
        outcomes: Callable[[CellJob], Outcome | None] = finish, **options: Any
    ) -> tuple[int, str, list[str]]:
        new_worker, log = fake(outcomes)
        monkeypatch.setattr(trials, "Worker", new_worker)
        if not options.pop("draw", False):  # figures take seconds
            monkeypatch.setattr(search_files, "write", search_files.write_tables)
        settings = TINY | options.pop("settings", {})
        methods = {name: {} for name in options.pop("methods", ("dpsgd", "lsg"))}
        grid = from_toml(
            {"workload": "digits", "settings": settings, "methods": methods}
            | options.pop("grid", {})
        )
        budget = options.pop("budget_minutes", None)
        given = {
            "search": SPACE,
            "trials": 3,
            "on": "held-out",
            "out": str(tmp_path / "search"),
        } | options
        text = StringIO()
        try:
            job = make_job(grid, [given.pop("search")], **given)
            status, run.best = search_command(  # type: ignore[attr-defined]
                job, Console(file=text, width=150), Limits(budget_minutes=budget)
            )
        finally:
            run.printed = " ".join(text.getvalue().split())  # type: ignore[attr-defined]
        return status, run.printed, [line for line in log if line.startswith("start")]  # type: ignore[attr-defined]

    return run


def trials_of(folder: Path) -> dict[str, dict[str, str]]:
    return {
        row["name"]: row for row in csv.DictReader((folder / "trials.csv").read_text().splitlines())
    }


@pytest.mark.slow
def test_methods_take_turns_and_the_best_of_each_is_kept(search, tmp_path):
    status, printed, asked = search(draw=True)
    assert status == 0
    assert asked == [
        f"start {name}-trial{number:03d}" for number in range(3) for name in ("dpsgd", "lsg")
    ]
    assert "rank: no setting of dpsgd, left out there" in printed
    found = json.loads((tmp_path / "search" / "search.json").read_text())
    rows = trials_of(tmp_path / "search")
    for label in ("dpsgd", "lsg"):
        own = found["methods"][label]
        best = max(
            (row for row in rows.values() if row["label"] == label),
            key=lambda row: float(row["accuracy"]),
        )
        assert own["best_trial"] == int(best["trial"])
        assert own["accuracy"] == pytest.approx(accuracy_of(own["best"]))
        assert best["best"] == "True"
    preset = {"dpsgd": 0.4, "lsg": 0.8}
    # the first trial: the preset's
    assert {n: float(rows[f"{n}-trial000"]["learning_rate"]) for n in preset} == preset
    assert {row["seed"] for row in rows.values()} == {str(FIRST_SEED)}  # no comparison has it
    grid = from_toml(tomllib.loads((tmp_path / "search" / "best.toml").read_text()))
    chosen = {label: own["best"] for label, own in found["methods"].items()}
    assert {entry.label: dict(entry.settings) for entry in grid.entries} == {
        **chosen,
        **{f"{name}-untouched": {} for name in chosen if found["methods"][name]["best_trial"] > 0},
    }
    # the runs that follow train on all rows, and are measured on the test split
    assert "holdout" not in grid.settings
    assert search.best == grid
    page = (tmp_path / "search" / "report.html").read_text()
    assert "What choosing costs in privacy" in page
    assert page.count('<svg role="img"') == 3
    assert (tmp_path / "search" / "plots" / "history.png").exists()


def test_trials_never_see_the_test_split(search):
    """They are measured on held-out or public rows; asked for the test split, the command
    refuses.
    """
    seen: list[dict[str, Any]] = []

    def look(job: CellJob) -> Outcome:
        seen.append(job.given)
        return finish(job)

    search(look, trials=1)
    assert {given["holdout"] for given in seen} == {0.1}
    with pytest.raises(ValueError, match="no setting is chosen on the test split"):
        search(on="test")


@pytest.mark.parametrize(
    ("ranges", "rates", "said"),
    [
        ("x0.5,x1,x2", [0.01414, 0.02828, 0.05656], "without a search it is"),
        (".1,.2", [0.02828, 0.1, 0.2], "without a search it is"),
    ],
)
def test_a_searched_rate_keeps_the_rest_of_the_rule(ranges, rates, said, search):
    """A rate that is given to one run means plain SGD; a search varies what it names alone."""
    seen: list[dict[str, Any]] = []

    def look(job: CellJob) -> Outcome:
        seen.append(job.given)
        return finish(job)

    features = {"features": "patches", "patch_filters": 4, "patch_size": 3}
    how = {"methods": ("dpsgd",), "settings": features, "sampler": "grid", "trials": None}
    search(look, search=f"learning_rate={ranges}", **how)
    assert said in search.printed
    assert [given["learning_rate"] for given in seen] == pytest.approx(rates, rel=1e-3)
    entry, untouched = search.best.entries
    assert dict(untouched.settings) == {}  # a run without a search has the rule itself
    for given in (*seen, entry.settings):
        assert (given["optimizer"], given["layer_rates"], given["ema"]) == ("adam", "equal", 0.0)


@pytest.mark.parametrize(
    ("ranges", "given", "asked"),
    [
        ("learning_rate=x0.5,x1,x2", {}, 3),
        ("learning_rate=x1,x2; clip_norm=1,2", {}, 5),  # and the values without a search
        ("learning_rate=x1,x2; clip_norm=1,2", {"trials": 6}, 6),
        ("learning_rate=x1,x2; clip_norm=log:1..2", {}, BY_DEFAULT),
        ("learning_rate=" + ",".join(map(str, range(1, 23))), {}, BY_DEFAULT),
    ],
)
def test_a_short_list_is_tried_once_each(ranges, given, asked, search):
    """Ranges, long lists and a number of trials are for the sampler: the negative control."""
    how = {"methods": ("lsg",), "trials": None, **given}
    _, _, started = search(search=ranges, **how)
    assert len(started) == asked


def test_a_folder_that_a_sampler_began_goes_on_with_it(search):
    lists = {"search": "learning_rate=x1,x2", "methods": ("lsg",)}
    assert len(search(trials=1, **lists)[2]) == 1
    assert len(search(trials=None, **lists)[2]) == BY_DEFAULT - 1


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_first_trial_has_the_values_without_a_search(sampler, search):
    seen: list[dict[str, Any]] = []

    def look(job: CellJob) -> Outcome:
        seen.append(job.given)
        return finish(job)

    search(look, search="learning_rate=.1,.2", methods=("lsg",), sampler=sampler, trials=2)
    assert seen[0]["learning_rate"] == 0.8  # the preset of digits
    assert "no trial is better than its values without a search" in search.printed


def test_multiples_hide_no_unknown_setting(search):
    for ranges in ("learning_rat=x0.5,x1; clip_norm=1,2", "learning_rate=x1.2.3,x1"):
        with pytest.raises(ValueError, match=ranges.partition("=")[0]):
            search(search=ranges, methods=("dpsgd",), sampler="grid", trials=None)


def test_the_cost_of_choosing_is_the_composition_of_the_trials_of_all_methods(search, tmp_path):
    _, printed, _ = search()
    spent = compose([Event(**(SPENT | {"steps": 2 * 6}))], delta=1e-5).upper
    one = compose([Event(**(SPENT | {"steps": 2 * 3}))], delta=1e-5).upper
    assert one < spent  # negative control: of the trials of one method alone
    cost = f"the epsilon of choosing is {epsilon_words(spent)} at delta 1e-05"
    sentence = f"Choosing among 6 trials by held-out private rows: {cost}"
    for text in (
        printed,
        json.loads((tmp_path / "search" / "search.json").read_text())["privacy"][0],
    ):
        assert sentence in text
    assert search.best.choosing.epsilon == spent
    note = " ".join(search.best.choosing.words)
    assert cost in note
    assert "the epsilon of choosing is inf for them" in note
    assert printed.index("CHOOSING COSTS PRIVACY") < printed.index("[1/6]")
    assert f"the epsilon of choosing by 6 trials like this one: {epsilon_words(spent)}" in printed


def test_the_runs_that_follow_have_the_untouched_settings_and_every_seed_is_counted(search):
    """Two methods, chosen and untouched, with three seeds: twelve runs."""
    target = {name: value for name, value in TINY.items() if name != "noise_multiplier"}
    keys = {"grid": {"epsilons": [2.0], "settings": target}}
    preset = {"dpsgd": 0.4, "lsg": 0.8}

    def untouched_is_worst(job: CellJob) -> Outcome:
        return finish(job, worse=job.given["learning_rate"] == preset[job.given["method"]])

    _, printed, _ = search(untouched_is_worst, **keys)
    assert [(entry.label, entry.method) for entry in search.best.entries] == [
        ("dpsgd", "dpsgd"),
        ("dpsgd-untouched", "dpsgd"),
        ("lsg", "lsg"),
        ("lsg-untouched", "lsg"),
    ]
    spent = search.best.choosing.epsilon
    runs, whole = epsilon_words(12 * 2.0), epsilon_words(spent + 12 * 2.0)
    assert (
        f"The 12 runs that follow, of chosen and untouched settings with each seed, add {runs}"
        in printed
    )
    assert f"Together: at most {whole} at delta 0.00013" in printed


def test_where_the_best_trial_is_that_without_a_search_no_run_is_repeated(search):
    def untouched_is_best(job: CellJob) -> Outcome:
        return finish(job, worse=job.given["learning_rate"] != 0.4)

    search(untouched_is_best, search="learning_rate=.1,.4", methods=("dpsgd",))
    assert [entry.label for entry in search.best.entries] == ["dpsgd"]
    assert search.best.choosing.untouched == {"dpsgd": "dpsgd"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"on": None},
            r"say with --on which rows the trials use: data:NAME or data:PATH .*held-out .*costs "
            r"privacy",
        ),
        ({"on": "data:digits"}, "public_rows=data:digits is refused: it is the run's own workload"),
        (
            {"on": "data:nowhere.npz"},
            "there is no file .*nowhere.npz, and no workload of that name",
        ),
        (
            {"grid": {"vary": {"momentum": [0, 0.9]}}},
            "--vary is an axis of a grid, .*: give its values to --search",
        ),
        (
            {"search": "rank=int:2..4000"},
            "1 of 4 cells cannot run, .*: lsg-rank4000: rank=4000 carries no layer",
        ),
        ({"sampler": "best"}, "unknown sampler 'best', expected one of tpe, random, grid"),
        (
            {"sampler": "grid", "trials": None},
            "--sampler grid tries lists, got the range learning_rate=0.25 to 4",
        ),
        ({"sampler": "grid"}, "--sampler grid tries every combination: leave --trials out"),
        ({"trials": 0}, "expected --trials 0 >= 1"),
        ({"on": "data:"}, "expected --on held-out"),
        ({"settings": {"public_rows": "synthetic"}}, "say it as --on"),
        (
            {"settings": {"noise_multiplier": 2.0, "learning_rate": 1.0}},
            "leave -c learning_rate=... out for dpsgd",
        ),
        (
            {"grid": {"ranks": [2, 4]}},
            "--ranks is an axis of a grid, and --search chooses by trials: search rank",
        ),
        ({"grid": {"epsilons": [1.0, 8.0], "settings": {"rounds": 2}}}, "give one epsilon"),
        ({"budget_minutes": 0}, "expected --budget-minutes 0 > 0"),
        (
            {"settings": {"unit": "client", "trust": "server"}},
            "it needs unit=example, got unit=client",
        ),
        (
            {"search": "unit=example,client"},
            "--search unit: it changes what is measured or how private it is",
        ),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(options, words, search, tmp_path):
    with pytest.raises(ValueError, match=words):
        search(**options)
    assert not (tmp_path / "search").exists()
