"""Public rows in place of the training split: the split itself is never opened, and what does not fit is refused."""

from pathlib import Path

import pytest
import torch

from simulations import workloads
from simulations.workloads import public_rows
from simulations.workloads.base import LoadedWorkload, Options
from tests.simulations.support.made_texts import make_bert, write_sst2

COUNT = 40


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """Tensors in the size of digits."""
    path = tmp_path / "public.pt"
    inputs = torch.rand(COUNT, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.save((inputs, torch.arange(COUNT) % 13), path)
    return path


def digits(rows: object, **options: object) -> LoadedWorkload:
    setting = rows if rows == "synthetic" else f"data:{rows}"
    return public_rows.load("digits", str(setting), data_dir=None, options=Options(**options))  # type: ignore[arg-type]


def test_the_rows_of_a_path_are_trained_on_and_the_test_split_stays(public):
    loaded = digits(public)
    assert len(loaded.train) == 31  # of the classes 0 to 9; 10, 11 and 12 are left out
    assert sorted(loaded.train.labels.tolist()) == sorted(k % 13 for k in range(COUNT) if k % 13 < 10)
    assert len(loaded.test) == len(workloads.load("digits").test)


def test_no_training_file_is_opened_for_synthetic_texts(tmp_path):
    mirror, bert = tmp_path / "mirror", make_bert(tmp_path / "bert")
    write_sst2(mirror, train=6, validation=4)
    for file in mirror.rglob("train*"):
        file.unlink()
    loaded = public_rows.load(
        "glue-sst2", "synthetic", data_dir=mirror, options=Options(model=str(bert), max_length=16, train_rows=30)
    )
    inputs, labels = loaded.train.batch(torch.arange(30))
    assert inputs["input_ids"].shape == (30, 16)
    assert set(labels.tolist()) == {0, 1}
    assert loaded.train.groups is not None
    with pytest.raises(OSError, match="train"):  # negative control
        workloads.load("glue-sst2", data_dir=mirror, options=Options(model=str(bert), max_length=16))


def test_the_workloads_own_rows_are_refused():
    with pytest.raises(ValueError, match="public_rows=data:digits is refused: it is the run's own workload"):
        digits("digits")
