"""Published image sets and any set of the hub: read from made shards and fakes, normalised by constants."""

import dataclasses
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from simulations import workloads
from simulations.client.drawing import batches
from simulations.plan.plan import prepare
from simulations.settings.settings import from_mapping
from simulations.workloads import LoadedWorkload, Options
from simulations.workloads.base.mirror import find_folder
from simulations.workloads.base.workload import Request, silent
from simulations.workloads.images.augment import crop, flip_crop
from simulations.workloads.images.hf_image import choose_columns
from simulations.workloads.images.image_sets import CIFAR10, IMAGE_SETS, SVHN
from tests.places import MIRROR
from tests.simulations.support.made_images import encode, pixels_of, write_shard

CLASSES = {"_type": "ClassLabel", "names": ["cat", "dog", "emu"]}
DECLARED = {"picture": {"_type": "Image"}, "kind": CLASSES}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDLSG_DATA", raising=False)
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path / "cache"))


# --- the published sets ---


def make_set(root: Path, name: str) -> dict[str, np.ndarray]:
    """5 training and 3 test images in the set's own layout; labels count down from the highest class."""
    image_set = IMAGE_SETS[name]
    folder = root / image_set.folder / image_set.subset
    folder.mkdir(parents=True)
    written = {}
    for split, count in (("train", 5), ("test", 3)):
        pixels = pixels_of(count, count, side=image_set.shape.side, channels=image_set.shape.channels)
        write_shard(
            folder / f"{split}-00000-of-00001.parquet",
            [encode(image) for image in pixels],
            [image_set.num_classes - 1 - i for i in range(count)],
            columns=(image_set.image_column, image_set.label_column),
            more={"coarse_label": [0] * count},
        )
        written[split] = pixels if pixels.ndim == 4 else pixels[..., None]
    return written


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_a_published_set_is_read_as_it_is_laid_out(name, tmp_path):
    written = make_set(tmp_path, name)
    workload = workloads.load(name, data_dir=tmp_path)
    image_set = IMAGE_SETS[name]
    assert (workload.name, workload.num_classes) == (name, image_set.num_classes)
    for split, stored in (("train", workload.train), ("test", workload.test)):
        assert np.array_equal(stored.inputs, written[split].transpose(0, 3, 1, 2))
    assert workload.train.labels.tolist() == [image_set.num_classes - 1 - i for i in range(5)]
    inputs, _ = workload.train.batch(torch.tensor([4, 1]))
    mean, std = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (image_set.mean, image_set.std))
    expected = (torch.from_numpy(written["train"][[4, 1]].transpose(0, 3, 1, 2)).double() / 255 - mean) / std
    torch.testing.assert_close(inputs.double(), expected, atol=2e-6, rtol=0)
    logits = workloads.build_model(workload)(inputs)
    assert logits.shape == (2, image_set.num_classes)


@pytest.mark.parametrize("copies", [1, 2])
def test_an_example_less_changes_nobody_elses_augmentation(copies, tmp_path):
    """Its own draw follows its row; drawn by place in the client's part, all that come after it would change."""
    make_set(tmp_path, "cifar10")
    settings = {"workload": "cifar10", "data_dir": str(tmp_path), "clients": 1, "augment": "flip-crop"}
    base = prepare(from_mapping(settings | {"multiplicity": copies}))
    neighbour = replace(base, parts=[base.parts[0][1:]])
    everyone, drawn = torch.arange(5), []
    whole = batches(base, 0, 1, drawn)(everyone)
    fewer = batches(neighbour, 0, 1, drawn)(everyone[:4])
    assert torch.equal(fewer[0], whole[0][copies:])
    assert torch.equal(fewer[1], whole[1][copies:])
    assert [rows.tolist() for rows in drawn] == [[0, 1, 2, 3, 4], [1, 2, 3, 4]]
    assert not torch.equal(batches(base, 0, 2, [])(everyone)[0], whole[0])  # another round, other draws


def test_what_the_sets_are():
    shapes = {name: (s.shape.channels, s.shape.side, s.num_classes) for name, s in IMAGE_SETS.items()}
    assert shapes == {
        "cifar10": (3, 32, 10), "cifar100": (3, 32, 100), "svhn": (3, 32, 10), "fashion-mnist": (1, 28, 10),
    }  # fmt: skip
    hubs = {name: (s.hub_name, s.subset) for name, s in IMAGE_SETS.items()}
    assert hubs == {
        "cifar10": ("uoft-cs/cifar10", "plain_text"),
        "cifar100": ("uoft-cs/cifar100", "cifar100"),
        "svhn": ("ufldl-stanford/svhn", "cropped_digits"),
        "fashion-mnist": ("zalando-datasets/fashion_mnist", "fashion_mnist"),
    }
    deltas = {name: s.defaults["delta"] for name, s in IMAGE_SETS.items()}
    assert deltas == {"cifar10": 1e-5, "cifar100": 1e-5, "svhn": 1e-6, "fashion-mnist": 1e-5}


def test_house_numbers_are_never_mirrored():
    augments = {name: image_set.augment for name, image_set in IMAGE_SETS.items()}
    assert augments == {"cifar10": flip_crop, "cifar100": flip_crop, "svhn": crop, "fashion-mnist": flip_crop}
    assert not SVHN.augment.mirrored


def test_a_set_of_another_shape_is_refused(tmp_path):
    """Planted: Fashion-MNIST's images as SVHN's, and CIFAR-10's labels in a set of three classes."""
    make_set(tmp_path, "fashion-mnist")
    (tmp_path / "fashion_mnist").rename(tmp_path / "svhn")
    (tmp_path / "svhn" / "fashion_mnist").rename(tmp_path / "svhn" / "cropped_digits")
    with pytest.raises(ValueError, match=r"expected image 0 of .*train.*parquet to be 32x32 RGB, got 28x28 L$"):
        workloads.load("svhn", data_dir=tmp_path)
    make_set(tmp_path, "cifar10")
    three = dataclasses.replace(CIFAR10, num_classes=3)
    with pytest.raises(ValueError, match=r"expected labels in 0..2 in .*, got 5..9 \(-1: none\)"):
        three.load(Request(data_dir=tmp_path, cache_dir=None, options=Options(), progress=silent, public_only=False))


def test_other_columns_are_listed(tmp_path):
    make_set(tmp_path, "cifar10")
    other = dataclasses.replace(CIFAR10, label_column="fine_label")
    with pytest.raises(ValueError, match=r"columns img .* and fine_label .*, got img \(struct.*label \(int64\)"):
        other.load(Request(data_dir=tmp_path, cache_dir=None, options=Options(), progress=silent, public_only=False))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("digits", {"dataset": "a/b"}), ("cifar10", {"max_length": 128}),
        ("cifar10", {"label_column": "label"}), ("svhn", {"train_layers": 2}), ("hf-image", {"max_length": 128}),
    ],
)  # fmt: skip
def test_an_option_without_a_use_is_refused(name, option):
    (setting,) = option
    with pytest.raises(ValueError, match=f"workload {name} has no use for {setting}="):
        workloads.load(name, options=Options(**option))


def test_pretrained_weights_go_to_every_model(tmp_path, monkeypatch):
    make_set(tmp_path, "cifar10")
    asked = []

    def spy(builder, source, **how):
        assert how.keys() == {"sha256", "classifier", "say"}
        asked.append(source)
        return lambda: f"{source} in a model"

    monkeypatch.setattr(workloads, "with_pretrained", spy)
    workload = workloads.load("cifar10", data_dir=tmp_path, options=Options(pretrained="w.pt"))
    assert asked == ["w.pt"] * len(workload.models)
    assert workload.models["cnn"]() == "w.pt in a model"
    asked.clear()
    workloads.load("cifar10", data_dir=tmp_path)
    assert asked == []


# --- any set of the hub, from a local mirror ---


def make_hf(
    root: Path,
    dataset: str = "someone/animals",
    subset: str = "default",
    *,
    side: int = 20,
    channels: int = 3,
    features: dict | None = DECLARED,
    test: str = "test",
    labels: tuple[int | None, ...] = (0, 2, 1, 2),
) -> np.ndarray:
    """Four training and two test images of ``side`` pixels; returns the training pixels."""
    folder = root / dataset / subset
    folder.mkdir(parents=True)
    for split, count in (("train", len(labels)), (test, 2)):
        pixels = pixels_of(count, count, side=side, channels=channels)
        write_shard(
            folder / f"{split}-00000-of-00001.parquet", [encode(image) for image in pixels], list(labels[:count]),
            columns=("picture", "kind"), features=features, more={"note": ["x"] * count},
        )  # fmt: skip
    return pixels_of(len(labels), len(labels), side=side, channels=channels)


def load_hf(root: Path | None, **options) -> LoadedWorkload:
    return workloads.load("hf-image", data_dir=root, options=Options(**{"dataset": "someone/animals"} | options))


@pytest.mark.parametrize(("side", "channels"), [(20, 3), (28, 1)])
def test_any_set_is_read_by_its_own_description(tmp_path, side, channels):
    pixels = make_hf(tmp_path, side=side, channels=channels)
    workload = load_hf(tmp_path)
    assert (workload.name, workload.num_classes, len(workload.test)) == ("hf-image", 3, 2)
    assert workload.train.labels.tolist() == [0, 2, 1, 2]
    inputs, _ = workload.train.batch(torch.arange(4))
    expected = torch.from_numpy(pixels.reshape(4, side, side, channels).transpose(0, 3, 1, 2)).double() / 127.5 - 1
    torch.testing.assert_close(inputs.double(), expected, atol=1e-6, rtol=0)
    assert workload.augment is flip_crop
    assert workloads.build_model(workload)(inputs).shape == (4, 3)


def test_the_number_of_classes_is_the_declared_one(tmp_path):
    """Not the largest label seen: that would be read off private examples."""
    make_hf(tmp_path, labels=(0, 0, 1, 0))
    assert load_hf(tmp_path).num_classes == 3


def test_where_a_set_may_lie(tmp_path):
    for place in ("a/someone/animals/one", "b/animals/one", "c/someone/animals"):
        make_hf(tmp_path, str(Path(place).parent), Path(place).name)
    assert find_folder("someone/animals", "one", data_dir=tmp_path / "a") == tmp_path / "a/someone/animals/one"
    assert find_folder("someone/animals", None, data_dir=tmp_path / "b") == tmp_path / "b/animals/one"
    assert find_folder("someone/animals", None, data_dir=tmp_path / "c") == tmp_path / "c/someone/animals"
    assert find_folder("someone/animals", None, data_dir=None) is None
    make_hf(tmp_path / "a", subset="two")
    with pytest.raises(FileNotFoundError, match=r"2 subsets with shards, choose one: subset=one, two"):
        find_folder("someone/animals", None, data_dir=tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"no shards in .*three.*subsets with shards: one, two"):
        find_folder("someone/animals", "three", data_dir=tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"no folder other/thing in .*\(--data-dir\)"):
        find_folder("other/thing", None, data_dir=tmp_path / "a")


@pytest.mark.parametrize("name", ["../animals", "/etc", "a/b/c", "a/../b", "", "a//b", "a/."])
def test_a_name_that_leaves_the_mirror_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"expected dataset=.* to be a name"):
        find_folder(name, None, data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"expected subset=.* to be a name"):
        find_folder("someone/animals", "../up", data_dir=tmp_path)


def replace_train(root: Path, images: list[np.ndarray], **features) -> None:
    file = root / "someone/animals/default/train-00000-of-00001.parquet"
    write_shard(
        file, [encode(image) for image in images], [0] * len(images), columns=("picture", "kind"), features=DECLARED
    )


def test_images_of_several_sizes_are_named(tmp_path):
    make_hf(tmp_path)
    replace_train(tmp_path, [pixels_of(1, i, side=side)[0] for i, side in enumerate((20, 20, 20, 30, 30, 16))])
    with pytest.raises(
        ValueError,
        match=r"expected image 3 of .* to be 20x20 RGB, got 30x30 RGB; it holds 20x20 RGB \(3\), 30x30 RGB \(2\), "
        r"16x16 RGB \(1\): bring them to one size first",
    ):
        load_hf(tmp_path)


@pytest.mark.parametrize(
    ("first", "got"),
    [
        (pixels_of(1, 0, side=20, channels=4)[0], "20x20 RGBA"),
        (pixels_of(1, 0, side=20)[0][:, :16], "16x20 RGB"),
        (np.zeros((20, 20), dtype=bool), "20x20 1"),
    ],
)
def test_an_image_mode_or_form_that_is_not_read(tmp_path, first, got):
    make_hf(tmp_path)
    replace_train(tmp_path, [first])
    with pytest.raises(ValueError, match=rf"expected square images, L or RGB, got image 0 of .* with {got}: convert"):
        load_hf(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": None}, r"needs a data set of the hub: -c dataset=OWNER/NAME"),
        (
            {"input_columns": "photo"},
            r"no column 'photo' \(input_columns.*picture \(Image\), kind \(Class.*note",
        ),
        ({"input_columns": "note"}, r"expected input_columns='note' to be a column of Image, got string"),
        ({"input_columns": "picture,note"}, r"no column 'picture,note' \(input_columns; one name\)"),
        ({"label_column": "species"}, r"no column 'species' \(label_column.*has picture \(Image\), kind"),
        ({"label_column": "note"}, r"label_column='note' to be a column of ClassLabel, got string; cast it"),
        ({"test_split": "train"}, r"expected a test_split other than 'train'"),
    ],
)
def test_a_wrong_option_lists_what_there_is(tmp_path, options, message):
    make_hf(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_hf(tmp_path, **options)


def test_a_missing_split_lists_those_there_are(tmp_path):
    make_hf(tmp_path, test="validation")
    with pytest.raises(
        FileNotFoundError, match=r"no split 'test' in .*; there are: train, validation .test_split names"
    ):
        load_hf(tmp_path)
    assert len(load_hf(tmp_path, test_split="validation").test) == 2


def test_labels_without_declared_classes_are_refused(tmp_path):
    make_hf(tmp_path, features=None)
    with pytest.raises(ValueError, match=r"expected one ClassLabel column.*picture \(Image\), kind \(int64\), note"):
        load_hf(tmp_path)
    with pytest.raises(ValueError, match=r"label_column='kind' to be a column of ClassLabel, got int64; cast it"):
        load_hf(tmp_path, label_column="kind")


@pytest.mark.parametrize(("label", "seen"), [(3, "0..3"), (-7, "-7..2"), (None, "-1..2")])
def test_a_label_out_of_range_is_refused(tmp_path, label, seen):
    make_hf(tmp_path, labels=(0, 2, 1, label))
    with pytest.raises(ValueError, match=rf"expected labels in 0..2 in .*, got {seen}"):
        load_hf(tmp_path)


def test_two_image_columns_need_a_name():
    features = {"left": {"_type": "Image"}, "right": {"_type": "Image"}, "kind": CLASSES, "boxes": [{"dtype": "x"}]}
    with pytest.raises(ValueError, match=r"expected one Image column, or its name in input_columns; .*boxes \(list\)"):
        choose_columns(features, Options(), "made")
    chosen = choose_columns(features, Options(input_columns="right"), "made")
    assert (chosen.image, chosen.label, chosen.num_classes) == ("right", "kind", 3)
    with pytest.raises(ValueError, match=r"expected two classes or more in the ClassLabel column kind of made, got 1"):
        choose_columns(features | {"kind": CLASSES | {"names": ["a"]}}, Options(input_columns="left"), "made")


def test_the_cache_tells_columns_and_splits_apart(tmp_path):
    """Two label columns of one file are two data sets; so are two test splits."""
    folder = tmp_path / "someone/animals/default"
    folder.mkdir(parents=True)
    images = [encode(image) for image in pixels_of(4, 0, side=20)]
    for split in ("train", "test"):
        write_shard(
            folder / f"{split}-00000-of-00001.parquet", images, [0, 1, 2, 1], columns=("picture", "kind"),
            features=DECLARED | {"mood": CLASSES}, more={"mood": [2, 2, 0, 0]},
        )  # fmt: skip
    assert load_hf(tmp_path, label_column="kind").train.labels.tolist() == [0, 1, 2, 1]
    assert load_hf(tmp_path, label_column="mood").train.labels.tolist() == [2, 2, 0, 0]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_an_empty_split_is_refused(tmp_path):
    make_hf(tmp_path)
    replace_train(tmp_path, [])
    with pytest.raises(ValueError, match=r"someone/animals: the split train holds no images"):
        load_hf(tmp_path)


# --- the hub ---


class FakeDatasets(types.ModuleType):
    """``datasets`` with a ``load_dataset`` of our own; everything else is the real library's."""

    def __init__(self, answer):
        import datasets

        super().__init__("datasets")
        self.Image, self.answer, self.asked = datasets.Image, answer, []

    def load_dataset(self, *arguments):
        self.asked.append(arguments)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def in_memory(tmp_path: Path):
    """A real ``DatasetDict``: encoded images in train, images stored by their path in test."""
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "kind": datasets.ClassLabel(names=CLASSES["names"]),
            "note": datasets.Value("int8"),
        }
    )
    files = []
    for number, image in enumerate(pixels_of(2, 2, side=20)):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(encode(image))
    train = [{"bytes": encode(image), "path": None} for image in pixels_of(4, 4, side=20)]
    parts = {
        "train": {"picture": train, "kind": [0, 2, 1, 2], "note": [1] * 4},
        "test": {"picture": [{"bytes": None, "path": str(file)} for file in files], "kind": [0, 2], "note": [1] * 2},
    }
    return datasets.DatasetDict({s: datasets.Dataset.from_dict(p, features=features) for s, p in parts.items()})


def test_the_hub_gives_what_the_mirror_gives(tmp_path, monkeypatch):
    make_hf(tmp_path / "data")
    mirrored = load_hf(tmp_path / "data")
    fake = FakeDatasets(in_memory(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    workload = load_hf(None, subset="default")
    assert fake.asked == [("someone/animals", "default")]
    for ours, theirs in ((workload.train, mirrored.train), (workload.test, mirrored.test)):
        assert np.array_equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.labels, theirs.labels)
    assert workload.num_classes == 3


def test_what_came_from_the_hub_is_decoded_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", FakeDatasets(in_memory(tmp_path)))
    said: list[str] = []
    options = Options(dataset="someone/animals")
    workloads.load("hf-image", options=options, progress=said.append)
    assert "decoded 6 images in" in said[-1]
    said.clear()
    workloads.load("hf-image", options=options, progress=said.append)
    assert said == []


def test_an_image_stored_elsewhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", FakeDatasets(in_memory(tmp_path)))
    (tmp_path / "1.png").unlink()
    with pytest.raises(ValueError, match=r"image 1 of someone/animals, test split holds no bytes"):
        load_hf(None)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (
            OSError("Name or service\nnot known"),
            ConnectionError,
            r"cannot load someone/animals .*service not known.*--d",
        ),
        (FileNotFoundError("doesn't exist on the Hub"), ConnectionError, r"doesn't exist on the Hub.*check the name"),
        (ValueError("pick one among: ['a', 'b']"), ValueError, r"subset=None: pick one among: \['a', 'b'\]"),
        (TimeoutError(), ConnectionError, r"\(TimeoutError\)"),
        ({"train": None}, ValueError, r"no split 'test' in someone/animals; there are: train"),
    ],
)
def test_what_the_hub_cannot_do_is_said_in_one_line(monkeypatch, answer, error, message):
    pytest.importorskip("datasets", reason="the hub extra is not installed")
    monkeypatch.setitem(sys.modules, "datasets", FakeDatasets(answer))
    with pytest.raises(error, match=message) as caught:
        load_hf(None)
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedlsg\[hub\]'.*--data-dir or FEDLSG_DATA"):
        load_hf(None)


# --- the real CIFAR-10 through the general door ---


@pytest.mark.data
def test_cifar10_read_as_any_set_is_cifar10(tmp_path):
    """Oracle: the last shard alone, through both doors."""
    source = MIRROR / "cifar10" / "plain_text"
    if not source.is_dir():
        pytest.skip("no local mirror of CIFAR-10: set FEDLSG_DATA to a folder that holds cifar10/plain_text")
    folder = tmp_path / "cifar10" / "plain_text"
    folder.mkdir(parents=True)
    for split, shard in (("train", "train-00003-of-00004"), ("test", "test-00000-of-00001")):
        rows = pq.read_table(source / f"{shard}.parquet").slice(0, 300)
        assert isinstance(rows, pa.Table)
        pq.write_table(rows, folder / f"{split}-00000-of-00001.parquet")
    named = workloads.load("cifar10", data_dir=tmp_path)
    general = workloads.load("hf-image", data_dir=tmp_path, options=Options(dataset="uoft-cs/cifar10"))
    assert general.num_classes == 10
    for ours, theirs in ((general.train, named.train), (general.test, named.test)):
        assert np.array_equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.labels, theirs.labels)
