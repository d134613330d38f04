"""ImageNet from a folder: what is read, when, in which form; a private run of ResNet-50; what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from simulations import workloads
from tests.simulations.support.runs import run_local

CLASSES = ("n01440764", "n01443537", "n02102040")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Made images: the colour tells the class; sizes and modes differ, as in ImageNet."""
    root = tmp_path_factory.mktemp("data") / "imagenet"
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for number, name in enumerate(CLASSES):
            (root / split / name).mkdir(parents=True)
            for image in range(count):
                width, height = (int(side) for side in generator.integers(40, 90, 2))
                pixels = generator.integers(0, 60, (height, width, 3)).astype(np.uint8)
                pixels[..., number] += 150
                made = Image.fromarray(pixels).convert("CMYK" if (split, number, image) == ("train", 0, 0) else "RGB")
                made.save(root / split / name / f"{name}_{image}.JPEG")
    (root / "train" / CLASSES[0] / "readme.txt").write_text("no image")
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


@pytest.mark.slow
def test_a_private_run_of_resnet_50(folder, tmp_path):
    run = run_local(
        tmp_path / "run", workload="imagenet", data_dir=str(folder), method="dp-ssgd", prune="random", rank=None,
        sparsity=None, model="resnet-50", clients=2, rounds=1, sample_rate=0.3, noise_multiplier=1.0, microbatch_size=2,
    )  # fmt: skip
    assert run.summary is not None
    assert run.summary["uplink_bytes"] > 0
    assert 0 < run.summary["epsilon_max"] < 100


def test_what_is_missing_or_broken_is_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"at least two folders of classes .*train.*give --data-dir"):
        workloads.load("imagenet", data_dir=tmp_path)
    (tmp_path / "train").symlink_to(folder / "train")
    (tmp_path / "val" / "n09999999").mkdir(parents=True)
    (tmp_path / "val" / CLASSES[0]).mkdir()
    with pytest.raises(ValueError, match=f"class '{CLASSES[0]}' has no images: expected .*fill the folder or remove"):
        workloads.load("imagenet", data_dir=tmp_path)
    for name in ("n09999999", CLASSES[0]):
        (tmp_path / "val" / name / "cut.JPEG").write_bytes(b"no image")
    with pytest.raises(ValueError, match="has the class n09999999, which train has not"):
        workloads.load("imagenet", data_dir=tmp_path)
    (tmp_path / "val" / "n09999999").rename(tmp_path / "val" / CLASSES[1])
    (tmp_path / "val" / CLASSES[2]).mkdir()
    with pytest.raises(ValueError, match=f"the class '{CLASSES[2]}' has no images"):
        workloads.load("imagenet", data_dir=tmp_path)
    (tmp_path / "val" / CLASSES[2]).rmdir()  # a class may have no test images
    loaded = workloads.load("imagenet", data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"cannot decode .*cut\.JPEG"):
        loaded.test.batch(torch.tensor([0]))
