"""The level of isolation of a run: by the rule or by a word, and where a reader finds it."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from fedlsg.simulations.planning.advice.remarks import isolation_line
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.earlier_runs.continuity import check_unchanged
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.run.commands import announce
from fedlsg.simulations.run.plan_command import _words, facts_of
from fedlsg.simulations.settings.rule_checker import idle
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.own import CLASSES, WIDTH, quick
from tests.simulations.support.runs import SMALL, run_local


class OwnNet(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def build() -> nn.Module:
    return OwnNet(nn.Linear(WIDTH, CLASSES))


def planned(**changes: Any) -> Plan:
    return make_plan(from_mapping(SMALL | changes))


def test_a_workload_that_ships_is_checked_and_its_settings_say_so() -> None:
    plan = planned()
    assert (plan.local.isolation, plan.settings.isolation) == ("checked", "checked")
    assert isolation_line(plan, plan.initial.public()) is None


@pytest.mark.parametrize("level", ["isolated", "rows"])
def test_a_word_goes_before_the_rule_and_into_every_entry(level: str, tmp_path: Path) -> None:
    run = run_local(tmp_path / "run", isolation=level, rounds=1)
    assert {entry.isolation for client in (0, 1) for entry in run.entries(client)} == {level}
    assert run.summary is not None
    assert run.summary["isolation"] == run.config["isolation"] == level


@pytest.mark.slow
def test_own_code_is_isolated_and_named_before_the_run(tmp_path: Path) -> None:
    run = quick(tmp_path / "own", model=build)
    assert run.summary["isolation"] == "isolated"
    directory = RunDir(tmp_path / "own")
    charges = [directory.charges.of(client) for client in directory.charges.clients()]
    assert {entry.isolation for one in charges for entry in one.entries} == {"isolated"}
    plan = make_plan(directory.read_config())
    facts = facts_of(plan)
    assert facts["isolation"] == "isolated"
    assert "OwnNet.forward is code of test_levels.py" in _words(facts)["isolation"]
    console = Console(file=io.StringIO(), width=200)
    announce(plan, console)
    assert "isolation isolated: own code, OwnNet" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_loss_of_ones_own_is_named_and_isolated(tmp_path: Path) -> None:
    loss = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")  # noqa: E731
    quick(tmp_path / "own", loss=loss)
    plan = make_plan(RunDir(tmp_path / "own").read_config())
    assert plan.local.isolation == "isolated"
    assert "<lambda>" in str(isolation_line(plan, plan.initial.public()))


@pytest.mark.parametrize("changes", [{"method": "sgd", "noise_multiplier": None}], ids=str)
def test_where_nothing_is_clipped_nothing_is_isolated(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    assert quick(tmp_path / "own", model=build, **changes).summary["isolation"] == "checked"
    settings = from_mapping(
        {k: v for k, v in (SMALL | changes | {"isolation": "rows"}).items() if v is not None}
    )
    base = prepare(settings)
    assert "isolation=rows needs" in idle(base.settings, base.method, ["isolation"])["isolation"]


def test_a_run_keeps_its_level(tmp_path: Path) -> None:
    run = run_local(tmp_path / "run", rounds=1)
    saved = run.checkpoint["plan"]
    assert check_unchanged(saved, planned(rounds=1, run_dir=str(run.path)), run.directory) == []
    with pytest.raises(ValueError, match=r"isolation = checked \(now rows\)"):
        check_unchanged(
            saved, planned(rounds=1, isolation="rows", run_dir=str(run.path)), run.directory
        )
