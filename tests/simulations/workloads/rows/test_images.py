"""Images by one rule of scale, and folders of them as people have them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from fedlsg.simulations.workloads.rows import image_folders as rule
from tests.simulations.support.own import load, refused, workload

GREY = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)


def folder(place: Path, images=GREY, classes=("cat", "dog"), suffix="png", **options) -> Path:
    """The same images in each class."""
    for name in classes:
        (place / name).mkdir(parents=True)
        for number, image in enumerate(images):
            made = image if isinstance(image, Image.Image) else Image.fromarray(image)
            made.save(place / name / f"{number}.{suffix}", **options)
    return place


def loaded(train, test=None, **changes):
    return load(workload(train=train, test=train if test is None else test, **changes))


def inputs(train, test=None, **changes) -> torch.Tensor:
    made = loaded(train, test, **changes).train
    return made.batch(torch.arange(len(made)))[0]


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)]
)
def test_eight_bits_are_divided_by_255(mode, channels, tmp_path):
    made = [
        Image.fromarray(image).convert("RGB" if channels == 3 else "L").convert(mode)
        for image in GREY
    ]
    found = inputs(folder(tmp_path / "a", made))
    assert (found.shape, found.dtype) == ((6, channels, 8, 8), torch.float32)
    assert torch.equal(found[3:], found[:3])
    assert found.max() == pytest.approx(np.asarray(made[0].convert("L")).max() / 255, abs=0.05)


@pytest.mark.parametrize(
    ("dtype", "factor", "white", "suffix"),
    [
        (np.uint16, 15, 4095, "png"),
        (np.uint16, 257, 65535, "png"),
        (np.int32, 1000, 262143, "tif"),
        (np.float32, 1 / 255, 1, "tif"),
        (np.float32, 1, 255, "tif"),
        (np.int32, -4, 1023, "tif"),
    ],
)
def test_deeper_pixels_are_divided_by_a_power_of_two(dtype, factor, white, suffix, tmp_path):
    stored = (GREY * np.float64(factor)).astype(dtype)
    place = folder(tmp_path / "a", stored, suffix=suffix)
    made = loaded(place)
    assert made.data["white"] == white
    assert f"pixels divided by {white}" in made.said
    expected = torch.from_numpy(stored.astype(np.float64) / white)
    torch.testing.assert_close(
        made.train.batch(torch.arange(3))[0][:, 0].double(), expected, atol=1e-6, rtol=0
    )
    if dtype == np.uint16:
        array = (stored[:, None], np.arange(3))
        torch.testing.assert_close(inputs(array)[:, 0].double(), expected, atol=1e-6, rtol=0)


def test_the_scale_is_that_of_public_images(tmp_path, monkeypatch):
    """A scale of the private rows would say something of the brightest of them."""
    dark, bright = (
        folder(tmp_path / name, GREY.astype(np.uint16) * factor)
        for name, factor in (("a", 8), ("b", 200))
    )
    assert loaded(bright, dark).data["white"] == loaded(dark, dark).data["white"] == 2047
    assert inputs(bright, dark).max() > 1
    real = rule.stack
    monkeypatch.setattr(
        rule, "stack", lambda files, columns, what: real(files, replace(columns, like=None), what)
    )
    assert inputs(bright, dark).max() < 1  # negative control: each split by its own


def test_depths_and_modes_are_not_mixed(tmp_path):
    eight, deep = folder(tmp_path / "8"), folder(tmp_path / "16", GREY.astype(np.uint16) * 16)
    colour = folder(tmp_path / "c", [np.stack([image] * 3, -1) for image in GREY])
    with refused("has images of 8 bits a pixel, test of more"):
        loaded(eight, deep)
    with refused("has images of more than 8 bits a pixel, test of 8"):
        loaded(deep, eight)
    with refused("has images in colour, those of test are grey"):
        loaded(colour, eight)
    assert inputs(eight, colour).shape == (6, 3, 8, 8)
    with refused("1.png more: give all images one depth"):
        loaded(folder(tmp_path / "m", [GREY[0], GREY[1].astype(np.uint16)]))
    missing = GREY.astype(np.float32)
    missing[1, 0, 0] = np.nan
    with refused("cat/1.tif has missing or infinite pixels"):
        loaded(folder(tmp_path / "n", missing, suffix="tif"))


def test_an_image_is_turned_as_its_orientation_says(tmp_path):
    lying = Image.fromarray(GREY[0][:, :6])
    tag = lying.getexif()
    tag[0x112] = 6  # seen after a turn to the right
    found = inputs(folder(tmp_path / "a", [lying], exif=tag))
    assert torch.equal(
        found[0, 0] * 255, torch.from_numpy(np.rot90(GREY[0][:, :6], -1).copy()).float()
    )


def test_what_programs_leave_is_skipped(tmp_path):
    place = folder(tmp_path / "a")
    for name in (".thumbnails", "__MACOSX", "@eaDir", ".git"):
        for inside in (place, place / "cat"):
            (inside / name).mkdir()
            Image.new("L", (4, 4)).save(inside / name / "0.png")
    for name in ("._0.png", ".DS_Store", "Thumbs.db"):
        (place / "cat" / name).write_bytes(b"\0")
        (place / f".{name}").write_bytes(b"\0")
    made = loaded(place)
    assert len(made.train) == 6
    assert "train: 6 rows of a, without 1 that are no images, such as cat/Thumbs.db" in made.said


@pytest.mark.parametrize("left", [(), ("picture.heic",), (".0.png",)])
def test_a_class_without_images_is_refused(left, tmp_path):
    place = folder(tmp_path / "a")
    (place / "owl").mkdir()
    for name in left:
        (place / "owl" / name).write_bytes(b"x")
    with refused("the class 'owl' has no images", "fill the folder or remove it"):
        loaded(place)


def test_a_folder_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    place = folder(tmp_path / "a")

    def walk(top, onerror):
        onerror(PermissionError(13, "Permission denied", str(top)))
        return iter(())

    monkeypatch.setattr("os.walk", walk)
    with refused("cannot read the folder", "cat: Permission denied"):
        loaded(place)


@pytest.mark.parametrize("link", ["hardlink_to", "symlink_to"])
def test_links_to_one_image_are_refused(link, tmp_path):
    """As people make them for rare classes; equal images of several people are files each."""
    place, public = folder(tmp_path / "a"), folder(tmp_path / "b")
    assert len(loaded(place, public).train) == 6
    getattr(place / "dog" / "9.png", link)(place / "cat" / "1.png")
    with refused("cat/1.png and dog/9.png are links to one file, and epsilon holds for an image"):
        loaded(place, public)
    assert len(loaded(public, place).test) == 7


def test_images_of_several_sizes_need_image_size(tmp_path):
    place = folder(tmp_path / "a", [GREY[0], GREY[1][:5, :6]])
    with refused("has images of several sizes (5x6, 8x8): give image_size="):
        loaded(place)
    assert inputs(place, image_size=4).shape == (4, 1, 4, 4)


def table(place: Path, text: str, encoding="utf-8") -> Path:
    (place / "metadata.csv").write_bytes(text.encode(encoding))
    return place


NAMES = [f"{label}/{number}.png" for label in ("cat", "dog") for number in range(3)]
SITES = [f"s{number % 2}" for number in range(6)]


@pytest.mark.parametrize(
    "form", ["plain", "reversed", "marked", "semicolons", "backslashes", "utf-16"]
)
def test_metadata_give_columns_in_the_order_of_the_images(form, tmp_path):
    rows = [f"{name},{site}" for name, site in zip(NAMES, SITES, strict=True)]
    text = "\n".join(["file_name,writer", *(rows[::-1] if form == "reversed" else rows)])
    text = (
        text.replace(",", ";")
        if form == "semicolons"
        else text.replace("/", "\\")
        if form == "backslashes"
        else text
    )
    encoding = {"marked": "utf-8-sig", "utf-16": "utf-16"}.get(form, "utf-8")
    made = loaded(table(folder(tmp_path / "a"), text, encoding))
    assert made.columns["writer"].tolist() == SITES
    assert made.columns["label"].tolist() == ["cat"] * 3 + ["dog"] * 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[1:], "has no row with file_name=cat/0.png: give one for each image"),
        (lambda rows: [*rows, "./cat/0.png,s1"], "has two rows for cat/0.png, 0 and 6"),
        (lambda rows: [rows[0], "cat/1.png", *rows[2:]], "metadata.csv"),
    ],
)
def test_wrong_metadata_are_refused(change, words, tmp_path):
    rows = [f"{name},{site}" for name, site in zip(NAMES, SITES, strict=True)]
    with refused(words):
        loaded(table(folder(tmp_path / "a"), "\n".join(["file_name,site", *change(rows)])))
    with refused("has no column file_name"):
        loaded(table(folder(tmp_path / "b"), "\n".join(["name,site", *rows])))


def test_images_of_a_table_or_data_set_are_read_by_the_same_rule(tmp_path):
    place = folder(tmp_path / "a", classes=("cat",))
    expected = inputs(place)
    things = [Image.fromarray(image) for image in GREY]
    encoded = [(place / "cat" / f"{number}.png").read_bytes() for number in range(3)]
    frames = [pd.DataFrame({"image": one, "label": [0, 1, 2]}) for one in (things, encoded)]
    for data in (*frames, list(zip(things, [0, 1, 2], strict=True)), (GREY[:, None], np.arange(3))):
        assert torch.equal(inputs(data), expected)
    with refused("the image in row 1 of test holds no image"):
        loaded(pd.DataFrame({"image": [encoded[0], None, encoded[1]], "label": [0, 1, 2]}))


HOSPITALS, DIGITS = ("north", "south"), ("one", "two")


def hospitals(place: Path, first=HOSPITALS, second=DIGITS, metadata=True, more="") -> Path:
    """FOLDER/first/second/number.png; the metadata have the columns hospital and digit."""
    rows = [f"file_name,hospital,digit{more and ',label'}"]
    for one in first:
        folder(place / one, classes=second)
        for two in second:
            hospital, digit = (one, two) if first == HOSPITALS else (two, one)
            rows += [
                f"{one}/{two}/{number}.png,{hospital},{digit}{more and f',{more}'}"
                for number in range(3)
            ]
    return table(place, "\n".join(rows)) if metadata else place


def test_targets_take_a_column_of_the_metadata(tmp_path):
    place = hospitals(tmp_path / "a")
    made = loaded(place, targets="digit", partition="hospital")
    assert made.data["targets"] == ["digit"]
    assert made.data["classes"] == list(DIGITS)
    assert made.train.labels.tolist() == 2 * ([0] * 3 + [1] * 3)
    assert made.columns["hospital"].tolist() == ["north"] * 6 + ["south"] * 6
    assert loaded(place).data["classes"] == list(HOSPITALS)  # control: the first folders
    flat = tmp_path / "flat"  # as the hub has them: the folder says nothing
    folder(flat, classes=("x",))
    (flat / "x" / "0.png").rename(flat / "loose.png")
    table(flat, "file_name,age\nloose.png,0.5\nx/1.png,1.5\nx/2.png,2.5")
    assert loaded(flat, targets="age", loss=nn.MSELoss()).train.labels.tolist() == [1.5, 2.5, 0.5]
    with refused("loose.png is in no folder of a class", "metadata.csv with targets="):
        loaded(flat)


def test_targets_that_the_metadata_have_not_are_refused(tmp_path):
    place = hospitals(tmp_path / "a")
    with refused(
        "has no column 'digits' for targets=; did you mean 'digit'?", "known are hospital"
    ):
        loaded(place, targets="digits")
    with refused("for targets=; the folder has no metadata.csv"):
        loaded(hospitals(tmp_path / "b", metadata=False), targets="digit")
    with refused("inputs='digit' names columns, and train is a folder of images"):
        loaded(place, inputs="digit")
    assert loaded(place, targets="label").data["classes"] == list(HOSPITALS)


def test_metadata_with_other_labels_than_the_folders_are_refused(tmp_path):
    other = hospitals(tmp_path / "a", more="one")
    with refused("says label 'one' of north/one/0.png", "targets='label' takes the column"):
        loaded(other)
    assert loaded(other, targets="label").data["classes"] == ["one"]
    rows = ["file_name,label", *(f"{name},{name[:3]}" for name in NAMES)]
    equal = table(folder(tmp_path / "b"), "\n".join(rows))
    assert loaded(equal).data["classes"] == ["cat", "dog"]  # control


def test_folders_of_something_else_are_named_with_the_fix(tmp_path):
    by_class = hospitals(tmp_path / "test", DIGITS, HOSPITALS)
    first = "the first folder of an image is its class, and 'north' is none of test"
    with refused(first, "targets='digit' takes the classes"):
        loaded(hospitals(tmp_path / "a"), by_class)
    bare = hospitals(tmp_path / "b", metadata=False)
    with refused(first, "the class is the second folder", "as one/north/0.png", "(partition=)"):
        loaded(bare, by_class)
    declared = [*DIGITS, *HOSPITALS]  # what the message before led to
    with refused("no folder of the class 'one', which classes= has", "the class is the second"):
        loaded(bare, by_class, classes=declared)
    with refused("no folder of the class 'one'", "targets='digit' takes"):
        loaded(tmp_path / "a", by_class, classes=declared)
    with refused("'owl' is none of test", "declare all with classes="):  # no fix by order
        loaded(folder(tmp_path / "c", classes=("one", "owl")), by_class)
    assert loaded(tmp_path / "a", by_class, targets="digit").num_classes == 2


def test_holdout_takes_images_of_a_folder(tmp_path):
    place = hospitals(tmp_path / "a", DIGITS, HOSPITALS)
    (place / "one" / "notes.txt").write_text("seen twice")
    made = load(workload(train=place, test=None, partition="hospital"), holdout=0.25)
    assert (len(made.train), len(made.test), made.test_name) == (9, 3, "holdout")
    whole = loaded(place)
    for split, columns in ((made.train, made.columns), (made.test, made.test_columns)):
        images = split.batch(torch.arange(len(split)))[0]
        assert len(columns["hospital"]) == len(split)
        for image, label, hospital in zip(images, split.labels, columns["hospital"], strict=True):
            same = (whole.train.batch(torch.arange(12))[0] == image).flatten(1).all(1)
            rows = same & (whole.train.labels == label)
            assert hospital in whole.columns["hospital"][rows.numpy()]
    assert len(whole.train) == 12  # control
    with refused("there is no such file or folder"):
        load(workload(train=tmp_path / "none", test=None), holdout=0.25)


def test_persons_of_metadata_are_texts(tmp_path):
    """As in tables: 007 and 7 are two persons."""
    patients = ["07", "7", "7", "8", "8", "9"]
    rows = [f"{name},{patient}" for name, patient in zip(NAMES, patients, strict=True)]
    rows = ["file_name,patient", *rows]
    made = loaded(table(folder(tmp_path / "a"), "\n".join(rows)), unit="patient")
    assert made.columns["patient"].tolist() == patients
