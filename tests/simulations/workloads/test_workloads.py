"""Workloads: splits, the digits data, CIFAR-10 from made and real shards, the cache, and what goes
wrong with each.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import LoadedWorkload, Split
from fedlsg.simulations.workloads import images as image_sets
from fedlsg.simulations.workloads.base import silent
from fedlsg.simulations.workloads.images import IMAGE_SETS
from fedlsg.simulations.workloads.images import digits as digits_module
from tests.simulations.support.made_images import encode, pixels_of, write_shard


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for variable in ("FEDLSG_DATA", "FEDLSG_CACHE"):
        monkeypatch.delenv(variable, raising=False)


def split_of(count: int) -> Split:
    inputs = np.arange(3 * count, dtype=np.uint8).reshape(count, 3)
    return Split(
        inputs=inputs,
        labels=torch.arange(count),
        prepare=lambda rows: torch.from_numpy(rows).float() / 2,
    )


@given(count=st.integers(1, 40), data=st.data())
def test_a_batch_is_the_rows_asked_for_in_that_order(count, data):
    split = split_of(count)
    rows = data.draw(st.lists(st.integers(0, count - 1), max_size=10))
    inputs, targets = split.batch(torch.tensor(rows, dtype=torch.int64))
    everything, labels = split.batch(torch.arange(count))
    assert len(split) == count
    assert inputs.shape == (len(rows), 3)
    assert torch.equal(inputs, everything[rows])
    assert torch.equal(targets, labels[rows])


def test_a_split_must_be_consistent():
    with pytest.raises(ValueError, match="got 3 and 2"):
        Split(
            inputs=np.zeros((3, 1)),
            labels=torch.zeros(2, dtype=torch.int64),
            prepare=torch.from_numpy,
        )
    with pytest.raises(ValueError, match="got 0 and 0"):
        Split(
            inputs=np.zeros((0, 1)),
            labels=torch.zeros(0, dtype=torch.int64),
            prepare=torch.from_numpy,
        )
    with pytest.raises(ValueError, match="expected one label an example"):
        Split(inputs=np.zeros((2, 1)), labels=torch.tensor(1), prepare=torch.from_numpy)


def test_a_label_outside_the_classes_is_refused():
    with pytest.raises(
        ValueError,
        match=r"train targets are 0 to 3, and the 3 classes of made are 0 to 2: give num_classes=4",
    ):
        LoadedWorkload(
            name="made", train=split_of(4), test=split_of(2), num_classes=3, models={}, defaults={}
        )


PRESETS = {
    "digits": digits_module.DEFAULTS,
    "hf-image": image_sets.DEFAULTS,
    **{name: image_set.defaults for name, image_set in IMAGE_SETS.items()},
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_what_a_run_needs(name):
    preset = PRESETS[name]
    needed = {
        "clients",
        "rounds",
        "sample_rate",
        "learning_rate",
        "momentum",
        "clip_norm",
        "epsilon",
        "delta",
    }
    assert needed <= set(preset)
    assert preset["clients"] >= 5  # never one: that would be no federation


def make_mirror(root: Path, form: str = "PNG") -> dict[str, np.ndarray]:
    """Two training shards of 6 and 5 images and a test shard of 4; returns the pixels of each
    split.
    """
    folder = root / "cifar10" / "plain_text"
    folder.mkdir(parents=True)
    sizes = {"train-00000-of-00002": 6, "train-00001-of-00002": 5, "test-00000-of-00001": 4}
    written: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for number, (stem, size) in enumerate(sizes.items()):
        pixels = pixels_of(size, number)
        labels = [(number + i) % 10 for i in range(size)]
        write_shard(folder / f"{stem}.parquet", [encode(image, form) for image in pixels], labels)
        written[stem.split("-")[0]].append(pixels)
    return {split: np.concatenate(parts) for split, parts in written.items()}


@pytest.fixture
def mirror(tmp_path) -> Path:
    make_mirror(tmp_path / "data")
    return tmp_path / "data"


def load_cifar10(root: Path, said: list[str] | None = None) -> LoadedWorkload:
    progress = silent if said is None else said.append
    return workloads.load(
        "cifar10", data_dir=root, cache_dir=root.parent / "cache", progress=progress
    )


@pytest.mark.parametrize("form", ["PNG", "WebP"])
def test_cifar10_decodes_every_shard_in_order(tmp_path, form):
    pixels = make_mirror(tmp_path / "data", form)
    workload = load_cifar10(tmp_path / "data")
    for split, written in ((workload.train, pixels["train"]), (workload.test, pixels["test"])):
        assert np.array_equal(split.inputs, written.transpose(0, 3, 1, 2))
        assert split.inputs.dtype == np.uint8
    assert workload.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
    assert workload.test.labels.tolist() == [2, 3, 4, 5]


def shard(root: Path, name: str = "train-00001-of-00002") -> Path:
    return root / "cifar10" / "plain_text" / f"{name}.parquet"


def cut_short(root: Path) -> None:
    shard(root).write_bytes(shard(root).read_bytes()[:-200])


def flip_bytes_in_the_middle(root: Path) -> None:
    content = bytearray(shard(root).read_bytes())
    content[1000:9000] = bytes(8000)
    shard(root).write_bytes(bytes(content))


def rename_a_column(root: Path) -> None:
    pq.write_table(pa.table({"image": [b""], "label": [1]}), shard(root))


def store_labels_as_text(root: Path) -> None:
    pq.write_table(pa.table({"img": [{"bytes": b"", "path": ""}], "label": ["cat"]}), shard(root))


def spoil(image: bytes | None = None, label: int | None = 1):
    def plant(root: Path) -> None:
        write_shard(shard(root), [encode(pixels_of(1, 0)[0]), image], [0, label])

    return plant


def remove(name: str):
    return lambda root: shard(root, name).unlink()


GOOD = encode(pixels_of(1, 1)[0])


@pytest.mark.parametrize(
    ("plant", "error", "message"),
    [
        (cut_short, ValueError, r"cannot read .*train-00001-of-00002.parquet.*download it again"),
        (flip_bytes_in_the_middle, ValueError, r"train-00001-of-00002.parquet.*download it again"),
        (rename_a_column, ValueError, r"expected the columns img .* and label"),
        (store_labels_as_text, ValueError, r"expected the columns img .* and label \(integer\)"),
        (spoil(GOOD, 10), ValueError, r"expected labels in 0..9 .*got 0..10"),
        (spoil(GOOD, -3), ValueError, r"expected labels in 0..9 .*got -3..0"),
        (spoil(GOOD, None), ValueError, r"expected labels in 0..9 .*none"),
        (spoil(None), ValueError, r"image 1 of .*train-00001.* holds no bytes"),
        (
            spoil(b"not an image"),
            ValueError,
            r"cannot decode image 1 of .*train-00001.*: not an image that Pillow can read; download",
        ),
        (spoil(GOOD[: len(GOOD) // 2]), ValueError, r"cannot decode image 1 of .*train-00001"),
        (spoil(encode(np.zeros((16, 32, 3), np.uint8))), ValueError, r"32x32 RGB, got 32x16 RGB"),
        (spoil(encode(np.zeros((32, 32), np.uint8))), ValueError, r"32x32 RGB, got 32x32 L"),
        (
            remove("train-00001-of-00002"),
            FileNotFoundError,
            r"incomplete .*train-00001-of-00002.parquet missing",
        ),
        (
            remove("test-00000-of-00001"),
            FileNotFoundError,
            r"no split 'test' in .*there are: train",
        ),
        (
            lambda root: shard(root).rename(shard(root, "train-00001-of-00003")),
            FileNotFoundError,
            r"mixes train",
        ),
        (
            lambda root: shard(root).rename(shard(root, "train-00002-of-00002")),
            FileNotFoundError,
            r"incomplete",
        ),
    ],
)
def test_damaged_data_is_named_and_leaves_no_cache(mirror, plant, error, message):
    plant(mirror)
    with pytest.raises(error, match=message):
        load_cifar10(mirror)
    cache = mirror.parent / "cache"
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.slow
def test_processes_at_once_agree(tmp_path):
    make_mirror(tmp_path / "data")
    program = (
        "import sys; from fedlsg.simulations.workloads import load\n"
        "w = load('cifar10', data_dir=sys.argv[1], cache_dir=sys.argv[2])\n"
        "print(int(w.train.inputs.sum()), len(w.test))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data"), str(tmp_path / "cache")]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=120) for process in running]
    assert {process.returncode for process in running} == {0}, printed
    assert len({out for out, _ in printed}) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1
