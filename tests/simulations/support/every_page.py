"""A page of each kind, made by the code that makes a user's: from tiny runs, or from results made
up.
"""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedlsg.attacks.observation import ThreatModel
from fedlsg.simulations.attacks import attack_one
from fedlsg.simulations.attacks.attack_page import write as write_attack
from fedlsg.simulations.attacks.audit.audit_command import audit_command
from fedlsg.simulations.attacks.membership import page as membership_page
from fedlsg.simulations.attacks.membership.measure import Limit, attack, by_epsilon
from fedlsg.simulations.attacks.membership.membership_findings import Report
from fedlsg.simulations.attacks.membership.shadows import Trained
from fedlsg.simulations.attacks.observations import open_record
from fedlsg.simulations.attacks.target import Options
from fedlsg.simulations.compare.grid.grid_file import from_toml
from fedlsg.simulations.compare.grid.runner import Folder
from fedlsg.simulations.compare.results.bytes_axis import View
from fedlsg.simulations.compare.results.comparison_files import Comparison
from fedlsg.simulations.compare.results.comparison_files import page as compare_page
from fedlsg.simulations.compare.results.plots import figures
from fedlsg.simulations.compare.search.cost_of_choosing import Rows
from fedlsg.simulations.compare.search.search_files import SearchState
from fedlsg.simulations.compare.search.search_files import figures as search_figures
from fedlsg.simulations.compare.search.search_files import page as search_page
from fedlsg.simulations.compare.search.space import Choices, Span
from fedlsg.simulations.compare.search.trials import Arm, Job, Trial
from fedlsg.simulations.inspection.inspect_command import inspect_command
from fedlsg.simulations.inspection.partition_view import partition_command
from fedlsg.simulations.report.page_of_run.run_page import run_page
from fedlsg.simulations.report.pages.page import download
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.results import Result
from tests.simulations.support.compare_cases import result
from tests.simulations.support.runs import SMALL, Run, run_local

PRIVATE = {key: value for key, value in SMALL.items() if key != "reproducible"}
LONG = "a-variant-of-lsg-with-a-name-that-is-longer-than-a-phone-is-wide"
RESULTS: list[Result] = [
    *(result(0.80 + 0.02 * seed, seed=seed) for seed in range(3)),
    *(result(0.86 + 0.01 * seed, seed=seed, epsilon=8.0) for seed in range(3)),
    result(0.7, method="linear-probe"),
    result(0.9, method="dpsgd", epsilon=8.0),
    result(0.1, method="rs"),
    result(0.81, label=LONG),
    result(0.97, method="sgd", epsilon=None),
    result(None, method="rgp"),
]


def compared(axis: str) -> str:
    """The page of ``fedlsg compare``."""
    command = "fedlsg compare digits --methods lsg,linear-probe --out " + "a-long-folder/" * 20
    view = View(bytes=axis == "bytes")
    made = Comparison(
        title="digits", results=RESULTS, command=command, grid="seeds = [0]", view=view
    )
    return compare_page(made, figures(made.table, view))


def searched() -> str:
    """The page of ``fedlsg compare --search``."""
    space = (
        Choices(name="rank", values=(1, 2, 4)),
        Span(name="learning_rate", low=0.1, high=10.0, log=True),
    )
    arm = Arm(
        label="lsg",
        given={"method": "lsg"},
        kept={},
        epsilon=8.0,
        space=space,
        start={},
        trials=6,
    )
    trials = [
        Trial(
            arm=arm,
            number=at,
            params={"rank": (1, 2, 4)[at % 3], "learning_rate": 0.2 * 2**at},
            result=result(0.5 + 0.05 * at),
        )
        for at in range(6)
    ]
    job = Job(
        grid=from_toml({"workload": "digits", "methods": {"lsg": {}}}),
        arms=(arm,),
        sampler="tpe",
        delta=1e-5,
        rows=Rows(words="synthetic inputs", private=True),
        folder=Folder(Path("search")),
        notices=("A note.",),
    )
    found = SearchState(
        job=job,
        trials=trials,
        finished=True,
        privacy=("Choosing costs privacy.",),
        command="fedlsg compare --grid best.toml",
        made_by="fedlsg compare digits",
    )
    return search_page(found, search_figures(found))


def found_members(models: Trained) -> str:
    """The page of ``fedlsg attack --membership``."""
    wide = Limit(name="bound: epsilon 8", bound=lambda rate: by_epsilon(rate, 8.0, 1e-5))
    report = Report(
        settings=from_mapping(PRIVATE),
        models=models,
        found=attack(models, seed=0),
        claim=None,
        limits=(wide,),
        own={},
        seed=0,
        seconds=1.0,
    )
    return membership_page(report, "digits, lsg", download("membership.json", b"{}", "numbers"))


def attacked(folder: Path) -> None:
    """attack.html of a recorded run, with curves of its gain and of made up ones at other noise."""
    settings = {
        "method": "sgd",
        "noise_multiplier": None,
        "sample_rate": None,
        "batch_size": 1,
        "rounds": 3,
    }
    run = run_local(folder / "recorded", record_updates=True, **settings)
    threat = ThreatModel(view="client", labels="known", examples="known")
    options = Options(
        batches=(1,), examples=2, attacks="first-layer", naive=False, seconds=0.5, seed=0
    )
    one = attack_one(open_record(str(run.path), threat), threat, options, lambda share, text: None)
    assert one.best is not None
    noisy = [
        replace(one, best=replace(one.best, sigma=sigma, gain=gain, low=gain - 1, high=gain + 1))
        for sigma, gain in ((0.1, 9.0), (1.0, 0.2))
    ]
    write_attack(folder, [one, *noisy], threat, question={}, lead="recorded")


def every_page(folder: Path, small: Run, unfinished: Result, models: Trained) -> dict[str, Path]:
    """The pages by their kinds."""
    console = Console(file=io.StringIO(), width=100)
    texts = {
        "run": (small.path / "report.html").read_text(),
        "unfinished": run_page(unfinished),
        "compare": compared("epsilon"),
        "compare-bytes": compared("bytes"),
        "search": searched(),
        "membership": found_members(models),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    attacked(folder)
    partition_command(
        {"workload": "digits", "clients": 30, "partition": "dirichlet"}, str(folder), console
    )
    audit_command(
        None, PRIVATE | {"rounds": 2}, console, out=str(folder / "audit.json"), canaries=50, seed=0
    )
    inspect_command(
        str(small.path), {}, console, examples=32, ranks="1,2", out=str(folder / "inspection")
    )
    made = {name: folder / f"{name}.html" for name in (*texts, "attack", "partition", "audit")}
    return made | {"inspect": folder / "inspection" / "inspection.html"}
