"""Passes in a Ray worker's own code, without Ray: the driver's accounts, and a pile in a worker of
this process.
"""

import math
import time
from typing import Any

import pytest

from fedlsg.simulations.client import pile_pass
from fedlsg.simulations.client.piles import pack, unpack
from fedlsg.simulations.client.virtual import task_identity
from fedlsg.simulations.engines import shared_passes
from fedlsg.simulations.engines.accounts import Accounts
from fedlsg.simulations.engines.ray import RayGrid
from fedlsg.simulations.engines.ray_worker import CLIENT, Job, Worker
from fedlsg.simulations.server.server_app import serve
from fedlsg.simulations.settings.settings import as_config
from fedlsg.strategies.protocol.proofs import own_identity
from tests.simulations.support.runs import Run, ignore, plan_at

SMALL: dict[str, Any] = {
    "reproducible": False,
    "clients": 3,
    "rounds": 1,
    "method": "dpsgd",
    "record_updates": True,
}


class OneWorker:
    """A worker in this process, which gets all tasks of a delivery in one pile."""

    def __init__(self, plan, limit: float) -> None:
        config = as_config(plan.settings)
        self.worker, self.limit, self.piles = Worker(), limit, 0
        self.job = Job(
            run="one",
            client=CLIENT,
            run_config=config,
            num_partitions=len(plan.terms),
            code=own_identity().digest,
        )

    def __len__(self) -> int:
        return 1

    def answer(self, tasks, deadline, pace, sending):
        if tasks:
            self.piles += 1
            sending(tasks)
            pickled, left = pack([([], []), *tasks])
            answers, arrays, *_ = self.worker.answer(
                self.job, None, [self.limit] * len(tasks), pickled, *left
            )
            yield tasks, unpack(answers, arrays)

    def close(self) -> None:
        pass


def run_in_a_worker(folder, limit: float = math.inf) -> Run:
    plan, directory = plan_at(folder, **SMALL)
    with task_identity():
        grid = RayGrid(OneWorker(plan, limit), Accounts(plan, directory), len(plan.terms))  # type: ignore[arg-type]
        return Run(directory.path, plan, serve(grid, plan, directory, on_round=ignore, page=False))


@pytest.mark.parametrize("hangs", [False, True])
def test_a_pile_shares_a_pass_and_each_client_is_charged_once(hangs, tmp_path, monkeypatch):
    seen, honest = [], pile_pass.sums_in_one_pass

    def spy(steps, slots):
        seen.append(len(slots))
        return time.sleep(60) if hangs else honest(steps, slots)

    monkeypatch.setattr(pile_pass, "sums_in_one_pass", spy)
    run = run_in_a_worker(tmp_path / "run", limit=5.0 if hangs else math.inf)
    assert seen == [3]
    assert len(run.payloads) == 3
    assert [len(run.entries(client)) for client in range(3)] == [1] * 3


def test_other_client_apps_share_no_pass():
    assert shared_passes.Passes(object(), 2, {}).divide([1, 2]) == [[1], [2]]  # type: ignore[list-item]
