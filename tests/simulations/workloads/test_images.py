"""Published image sets and any set of the hub: read from made shards and fakes, normalised by
constants.
"""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedlsg.simulations import workloads
from fedlsg.simulations.client.drawing import batches
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.workloads import LoadedWorkload, Options
from fedlsg.simulations.workloads.images import IMAGE_SETS
from fedlsg.simulations.workloads.images.augment import flip_crop
from fedlsg.simulations.workloads.rows.shards import find_folder
from tests.simulations.support.made_images import encode, pixels_of, write_shard
from tests.simulations.support.runs import run_local

CLASSES = {"_type": "ClassLabel", "names": ["cat", "dog", "emu"]}
DECLARED = {"picture": {"_type": "Image"}, "kind": CLASSES}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDLSG_DATA", raising=False)
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path / "cache"))


def make_set(root: Path, name: str) -> dict[str, np.ndarray]:
    """5 training and 3 test images in the set's own layout; labels count down from the highest
    class.
    """
    image_set = IMAGE_SETS[name]
    folder = root / image_set.hub_name.rpartition("/")[2] / image_set.subset
    folder.mkdir(parents=True)
    written = {}
    for split, count in (("train", 5), *((split, 2) for split in image_set.more), ("test", 3)):
        pixels = pixels_of(
            count, count, side=image_set.shape.side, channels=image_set.shape.channels
        )
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
    written["train"] = np.concatenate([written[s] for s in ("train", *image_set.more)])
    for split, stored in (("train", workload.train), ("test", workload.test)):
        assert np.array_equal(stored.inputs, written[split].transpose(0, 3, 1, 2))
    rows = [*range(5), *(row for _ in image_set.more for row in range(2))]
    assert workload.train.labels.tolist() == [image_set.num_classes - 1 - row for row in rows]
    inputs, _ = workload.train.batch(torch.tensor([4, 1]))
    mean, std = (
        torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
        for values in (image_set.mean, image_set.std)
    )
    expected = (
        torch.from_numpy(written["train"][[4, 1]].transpose(0, 3, 1, 2)).double() / 255 - mean
    ) / std
    torch.testing.assert_close(inputs.double(), expected, atol=2e-6, rtol=0)
    logits = workloads.build_model(workload)(inputs)
    assert logits.shape == (2, image_set.num_classes)


@pytest.mark.parametrize("copies", [1, 2])
def test_an_example_less_changes_nobody_elses_augmentation(copies, tmp_path):
    """Its own draw follows its row; drawn by place in the client's part, all that come after it
    would change.
    """
    make_set(tmp_path, "cifar10")
    settings = {
        "workload": "cifar10",
        "data_dir": str(tmp_path),
        "clients": 1,
        "augment": "flip-crop",
        "reproducible": True,  # else draws are secret
    }
    base = prepare(from_mapping(settings | {"multiplicity": copies}))
    neighbour = replace(base, parts=[base.parts[0][1:]])
    everyone, drawn = torch.arange(5), []
    whole = batches(base, 0, 1, drawn)(everyone)
    fewer = batches(neighbour, 0, 1, drawn)(everyone[:4])
    assert torch.equal(fewer[0], whole[0][copies:])
    assert torch.equal(fewer[1], whole[1][copies:])
    assert [rows.tolist() for rows in drawn] == [[0, 1, 2, 3, 4], [1, 2, 3, 4]]
    # another round, other draws
    assert not torch.equal(batches(base, 0, 2, [])(everyone)[0], whole[0])


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
            folder / f"{split}-00000-of-00001.parquet",
            [encode(image) for image in pixels],
            list(labels[:count]),
            columns=("picture", "kind"),
            features=features,
            more={"note": ["x"] * count},
        )
    return pixels_of(len(labels), len(labels), side=side, channels=channels)


def load_hf(root: Path | None, **options) -> LoadedWorkload:
    return workloads.load(
        "hf-image", data_dir=root, options=Options(**{"dataset": "someone/animals"} | options)
    )


@pytest.mark.parametrize(("side", "channels"), [(20, 3), (28, 1)])
def test_any_set_is_read_by_its_own_description(tmp_path, side, channels):
    pixels = make_hf(tmp_path, side=side, channels=channels)
    workload = load_hf(tmp_path)
    assert (workload.name, workload.num_classes, len(workload.test)) == ("hf-image", 3, 2)
    assert workload.train.labels.tolist() == [0, 2, 1, 2]
    inputs, _ = workload.train.batch(torch.arange(4))
    expected = (
        torch.from_numpy(pixels.reshape(4, side, side, channels).transpose(0, 3, 1, 2)).double()
        / 127.5
        - 1
    )
    torch.testing.assert_close(inputs.double(), expected, atol=1e-6, rtol=0)
    assert workload.augment is flip_crop
    assert workloads.build_model(workload)(inputs).shape == (4, 3)


@pytest.mark.parametrize("mode", ["P", "RGBA", "L", "I;16"])
def test_images_of_the_hub_are_read_by_the_rule_of_folders(mode, tmp_path):
    """A palette, transparency, and grey among colours; 16 bits a pixel are named with the fix."""
    make_hf(tmp_path)
    shard = tmp_path / "someone" / "animals" / "default" / "train-00000-of-00001.parquet"
    images = [Image.fromarray(pixels) for pixels in pixels_of(4, 4, side=20)]
    images[2] = (
        images[2].convert(mode)
        if mode != "I;16"
        else Image.fromarray(np.full((20, 20), 700, np.uint16))
    )
    for image, stream in zip(images, streams := [io.BytesIO() for _ in images], strict=True):
        image.save(stream, "PNG")
    encoded = [stream.getvalue() for stream in streams]
    write_shard(shard, encoded, [0, 1, 2, 0], columns=("picture", "kind"), features=DECLARED)
    if mode == "I;16":
        with pytest.raises(ValueError, match=r"image 2 of .*more than 8 bits a pixel"):
            load_hf(tmp_path)
        return
    inputs, _ = load_hf(tmp_path).train.batch(torch.tensor([2]))
    wanted = (
        torch.from_numpy(np.asarray(images[2].convert("RGB")).copy()).permute(2, 0, 1) / 127.5 - 1
    )
    torch.testing.assert_close(inputs[0], wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("given", ["", "someone", "someone/animals"])
def test_the_given_folder_is_a_mirror_an_owner_or_the_data_set_itself(given, tmp_path):
    make_hf(tmp_path)
    folder = tmp_path / "someone" / "animals" / "default"
    for subset in ("default", None):
        assert find_folder("someone/animals", subset, data_dir=tmp_path / given) == folder
    with pytest.raises(FileNotFoundError, match="no folder someone/plants"):
        find_folder("someone/plants", None, data_dir=tmp_path / given)


@pytest.mark.parametrize("name", ["../animals", "/etc", "a/b/c", "a/../b", "", "a//b", "a/."])
def test_a_name_that_leaves_the_mirror_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"expected dataset=.* to be a name"):
        find_folder(name, None, data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"expected subset=.* to be a name"):
        find_folder("someone/animals", "../up", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": None}, r"needs a data set of the hub: -c dataset=OWNER/NAME"),
        (
            {"input_columns": "photo"},
            r"no column 'photo' \(input_columns.*picture \(Image\), kind \(Class.*note",
        ),
        (
            {"input_columns": "note"},
            r"expected input_columns='note' to be a column of Image, got string",
        ),
        (
            {"input_columns": "picture,note"},
            r"no column 'picture,note' \(input_columns; one name\)",
        ),
        (
            {"label_column": "species"},
            r"no column 'species' \(label_column.*has picture \(Image\), kind",
        ),
        (
            {"label_column": "note"},
            r"label_column='note' to be a column of ClassLabel, got string; cast it",
        ),
        ({"test_split": "train"}, r"expected a test_split other than 'train'"),
    ],
)
def test_a_wrong_option_lists_what_there_is(tmp_path, options, message):
    make_hf(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_hf(tmp_path, **options)


CLASSES_OF_IMAGENET = ("n01440764", "n01443537", "n02102040")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Made images: the colour tells the class; sizes and modes differ, as in ImageNet."""
    root = tmp_path_factory.mktemp("data") / "imagenet"
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for number, name in enumerate(CLASSES_OF_IMAGENET):
            (root / split / name).mkdir(parents=True)
            for image in range(count):
                width, height = (int(side) for side in generator.integers(40, 90, 2))
                pixels = generator.integers(0, 60, (height, width, 3)).astype(np.uint8)
                pixels[..., number] += 150
                made = Image.fromarray(pixels).convert(
                    "CMYK" if (split, number, image) == ("train", 0, 0) else "RGB"
                )
                made.save(root / split / name / f"{name}_{image}.JPEG")
    (root / "train" / CLASSES_OF_IMAGENET[0] / "readme.txt").write_text("no image")
    return root


def test_images_of_any_size_are_squares_and_labels_follow_the_folders(folder):
    for place in (folder, folder.parent):  # the folder of train and val, or the one that holds it
        loaded = workloads.load("imagenet", data_dir=place)
        assert (len(loaded.train), len(loaded.test), loaded.num_classes) == (12, 6, 3)
        inputs, labels = loaded.train.batch(torch.tensor([11, 0, 5]))
        assert inputs.shape == (3, 3, 224, 224)
        assert labels.tolist() == [2, 0, 1]
        assert inputs.mean((2, 3)).argmax(1).tolist() == [2, 0, 1]  # the colour of the class
    assert loaded.default_model == "resnet-50"


def test_a_clients_own_folder_has_the_classes_of_the_public_data(folder, tmp_path):
    whole, public = (
        workloads.load("imagenet", data_dir=folder, public_only=only) for only in (False, True)
    )
    for place in (folder, folder / "train"):
        rows = public.read(place, tmp_path)
        assert rows.labels.equal(whole.train.labels)
        assert torch.equal(
            rows.batch(torch.tensor([3, 9]))[0], whole.train.batch(torch.tensor([3, 9]))[0]
        )
    one = tmp_path / "own" / CLASSES_OF_IMAGENET[2]
    shutil.copytree(folder / "train" / CLASSES_OF_IMAGENET[2], one)
    assert public.read(one.parent, tmp_path).labels.tolist() == [2] * 4  # by name, not by place
    one.rename(one.parent / "n99")
    with pytest.raises(ValueError, match="has the class n99, which the public data has not"):
        public.read(one.parent, tmp_path)


def test_a_jpeg_of_several_pictures_is_refused_before_the_run(folder, tmp_path):
    """As some cameras write them; ``image_frame=0`` takes the first."""
    shutil.copytree(folder, tmp_path / "imagenet")
    name = CLASSES_OF_IMAGENET[1]
    place = tmp_path / "imagenet" / "train" / name / f"{name}_0.JPEG"
    with Image.open(place) as picture:
        first = picture.copy()
    other = Image.new("RGB", first.size)
    first.save(place, format="MPO", save_all=True, append_images=[other])
    with pytest.raises(ValueError, match=r"_0\.JPEG has 2 frames or pages, and one is read"):
        workloads.load("imagenet", data_dir=tmp_path)
    loaded = workloads.load("imagenet", data_dir=tmp_path, options=Options(image_frame=0))
    assert loaded.train.batch(torch.tensor([4]))[0].mean((0, 2, 3)).argmax() == 1


@pytest.mark.slow
def test_a_private_run_of_resnet_50(folder, tmp_path):
    run = run_local(
        tmp_path / "run",
        workload="imagenet",
        data_dir=str(folder),
        method="dp-ssgd",
        prune="random",
        rank=None,
        sparsity=None,
        model="resnet-50",
        clients=2,
        rounds=1,
        sample_rate=0.3,
        noise_multiplier=1.0,
        microbatch_size=2,
        reproducible=False,
    )
    assert run.summary is not None
    assert run.summary["uplink_bytes"] > 0
    assert 0 < run.summary["epsilon_max"] < 100
