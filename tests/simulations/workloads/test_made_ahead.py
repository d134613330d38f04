"""Images in files, decoded by workers ahead of a step: the same run, and a lost worker has a
name.
"""

import json
import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from fedlsg.rows import LostWorkerError
from fedlsg.simulations.client.drawing import batches, groups
from fedlsg.simulations.workloads.base.made_ahead import MadeAhead, workers_of
from fedlsg.simulations.workloads.base.split import Picked
from fedlsg.simulations.workloads.images import imagenet
from tests.simulations.support.runs import plan_at, run_local

RUN = {
    "workload": "imagenet",
    "model": "cnn",
    "method": "dpsgd",
    "rank": None,
    "sparsity": None,
    "clients": 1,
    "rounds": 1,
    "sample_rate": 0.7,
    "noise_multiplier": 1.0,
    "augment": "flip-crop",
    "microbatch_size": 5,
    "engine": "local",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 1)):
        for name in ("n1", "n2"):
            (root / split / name).mkdir(parents=True)
            for image in range(count):
                pixels = generator.integers(0, 255, (30, 40, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{image}.JPEG")
    return str(root)


def test_a_run_is_the_same_bit_for_bit_with_any_number_of_workers(folder, tmp_path, monkeypatch):
    taken: list[int] = []
    take = imagenet.ImageFiles.__getitem__
    monkeypatch.setattr(
        imagenet.ImageFiles, "__getitem__", lambda s, rows: taken.append(len(rows)) or take(s, rows)
    )
    done = {}
    for count in (0, 2):
        taken.clear()
        run = run_local(
            tmp_path / str(count), data_dir=folder, reproducible=True, loader_workers=count, **RUN
        )
        done[count] = (run.summary or {})["loss"], taken.count(5)
    assert done[0][0] == done[2][0]
    assert done[0][1] > 0
    assert done[2][1] == 0, "negative control: this process decodes no microbatch"


@pytest.mark.slow
def test_rows_that_nobody_expected_are_made_here(folder, tmp_path):
    train = plan_at(tmp_path / "run", data_dir=folder, **RUN)[0].workload.train
    ahead = MadeAhead(train, 1)
    split = ahead.of(train)
    ahead.workers.open()
    ahead.expect(np.array([3, 1, 9]), 2)
    for rows in ([3, 1], [5], [9], []):
        asked = torch.tensor(rows, dtype=torch.int64)
        assert torch.equal(split.batch(asked)[0], train.batch(asked)[0])
    ahead.expect(np.zeros(0, dtype=np.int64), 2)
    assert torch.equal(split.batch(torch.tensor([2]))[0], train.batch(torch.tensor([2]))[0])
    ahead.workers.close()


def test_workers_start_before_the_batch_and_a_killed_one_is_an_error_with_a_name(folder, tmp_path):
    base = plan_at(tmp_path / "run", data_dir=folder, loader_workers=1, **RUN)[0]
    batch, grouped = batches(base, 0, 1, []), groups(base, 0)
    assert base.rows.ahead is not None
    pool = base.rows.ahead.workers._pool
    assert pool is not None, "batches() starts them"
    (worker,) = pool._processes
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(LostWorkerError, match="step stays charged once"):
        batch(*grouped(torch.arange(16)))
    with pytest.raises(LostWorkerError, match="no worker runs"):
        grouped(torch.arange(4))  # this step has drawn secrets, which a fork would copy
    batch = batches(base, 0, 2, [])  # new workers
    (positions,) = grouped(torch.arange(4))
    assert batch(positions)[0].shape == (4, 3, 224, 224)


def test_a_run_whose_worker_is_killed_names_it_and_charges_once(
    folder, tmp_path, monkeypatch, caplog
):
    expect = MadeAhead.expect

    def killed(self, rows, size):
        for worker in self.workers._pool._processes:
            os.kill(worker, signal.SIGKILL)
        expect(self, rows, size)

    monkeypatch.setattr(MadeAhead, "expect", killed)
    run_local(tmp_path / "run", data_dir=folder, loader_workers=1, **RUN)
    assert "client 0: one of 1 workers that make rows ended" in caplog.text
    charged = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    assert len([line for line in charged if json.loads(line).get("round") == 1]) == 1


def test_workers_are_refused_for_rows_in_memory(tmp_path):
    with pytest.raises(ValueError, match="loader_workers=2: workers decode images in files"):
        plan_at(tmp_path / "run", loader_workers=2)
    base = plan_at(tmp_path / "run")[0]
    assert workers_of(base.settings, base.workload.train.inputs) == 0
    assert base.rows.ahead is None


@pytest.mark.slow
def test_picked_files_are_files(folder, tmp_path):
    train = plan_at(tmp_path / "run", data_dir=folder, **RUN)[0].workload.train
    assert Picked(stored=train.inputs, rows=np.arange(3)).in_files
    assert not Picked(stored=np.zeros((4, 2)), rows=np.arange(3)).in_files
