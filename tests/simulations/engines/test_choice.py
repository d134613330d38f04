"""``engine=auto``: chosen by the work, by what only Ray has, and never against what the user
said.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedlsg.simulations.engines import choice
from fedlsg.simulations.engines.choice import multiplications, with_engine
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.settings.settings import from_mapping
from tests.simulations.support.own import quick
from tests.simulations.support.runs import SMALL, Run


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two small clients, two rounds."""
    return make_plan(from_mapping(SMALL | {"engine": "auto"}))


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Two processors, and no Ray that this process or its environment names."""
    monkeypatch.setattr(choice, "processors", lambda: 2)
    monkeypatch.setattr(choice, "in_use", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def said(plan: Plan, **changes) -> tuple[str, str]:
    found, why = with_engine(replace(plan, settings=replace(plan.settings, **changes)))
    return found.settings.engine, why


def test_little_work_runs_here_and_much_work_on_ray(plan, monkeypatch):
    assert said(plan)[0] == "local"
    assert "does not pay for Ray's start (engine=ray" in said(plan)[1]
    long = replace(plan, schedule=replace(plan.schedule, rounds=100_000))
    assert said(long)[0] == "ray"
    assert "2 processors share about" in said(long)[1]
    monkeypatch.setattr(choice, "processors", lambda: 1)
    assert said(long)[0] == "local", "one worker saves nothing"


def test_an_engine_that_is_given_stays(plan):
    for engine in ("local", "ray", "flower"):
        assert said(plan, engine=engine) == (engine, "")


@pytest.mark.parametrize(
    "asked", [{"workers": 1}, {"client_timeout": 5.0}, {"client_cpus": 2}, {"data_from": "node"}]
)
def test_what_only_ray_has_takes_ray(plan, asked):
    assert said(plan, **asked) == (
        "ray",
        f"{next(iter(asked))} is given (engine=local runs all clients in this process)",
    )


def test_a_ray_to_join_is_joined(plan, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert said(plan)[0] == "ray"


def test_the_ray_of_this_process_is_used_where_it_has_a_place(plan, monkeypatch):
    """A run that waits for processors that somebody else keeps would wait for ever."""
    monkeypatch.setattr(choice, "in_use", lambda: True)
    monkeypatch.setattr(choice, "gets_place", lambda cpus: True)
    assert said(plan)[0] == "ray"
    monkeypatch.setattr(choice, "gets_place", lambda cpus: False)
    assert said(plan) == (
        "local",
        "the Ray of this process has no free processor (engine=ray waits for one)",
    )


def of(plan: Plan, model) -> float:
    other = replace(plan.workload, models={plan.settings.model: model}, classifier=None)
    return multiplications(replace(plan, workload=other))


def test_multiplications_count_positions(plan):
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Unflatten(1, (1, 64)),
            nn.Conv1d(1, 3, 3),
            nn.Flatten(),
            nn.Linear(186, 10),
        )

    assert multiplications(plan) == 64 * 64 + 64 * 10

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.head = nn.LSTM(8, 5, batch_first=True), nn.Linear(5, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.read(x.squeeze(1))[0][:, -1])

    assert of(plan, model) == 3 * 3 * 62 + 186 * 10
    assert of(plan, Recurrent) == 8 * 4 * 5 * (8 + 5) + 5 * 10


def test_an_estimate_refuses_no_run(plan):
    class Picky(nn.Flatten):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("these rows I dislike")

    other = replace(plan.workload, models={plan.settings.model: Picky}, classifier=None)
    engine, why = said(replace(plan, workload=other))
    assert engine == "local"
    assert "the model fails on 4 rows of test: RuntimeError: these rows I dislike" in why


@pytest.mark.slow
def test_the_engine_that_ran_is_recorded_and_resumed(tmp_path, monkeypatch):
    """With the weights of the engine that is named."""

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path / "auto", engine="auto", rounds=2, callbacks=[stop])
    monkeypatch.setattr(choice, "START", -1e9)  # now Ray would be chosen, as on another machine
    resumed = quick(tmp_path / "auto", engine="auto", rounds=2, resume=True)
    assert (Run(resumed.directory).config["engine"], resumed.summary["engine"]) == (
        "local",
        "local",
    )
    wanted = quick(tmp_path / "named", engine="local", rounds=2).model.state_dict()
    assert all(
        torch.equal(value, wanted[name]) for name, value in resumed.model.state_dict().items()
    )


@pytest.mark.slow
def test_a_configuration_that_was_edited_to_auto_is_chosen_for(tmp_path):
    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path, engine="local", rounds=2, callbacks=[stop])
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace('engine = "local"', 'engine = "auto"'))
    assert quick(tmp_path, engine="auto", rounds=2, resume=True).summary["engine"] == "local"
