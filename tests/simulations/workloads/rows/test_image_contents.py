"""Nothing of an image is lost without a word: transparency, frames, depth, channels that Pillow
drops.
"""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedlsg.simulations import workloads
from fedlsg.simulations.workloads.rows import image_contents
from tests.simulations.support.own import load, refused, workload

PIXELS = np.random.default_rng(0).integers(1, 255, (8, 8, 3), dtype=np.uint8)
DEEP = PIXELS.astype(np.uint16) * 257 - 128
GREY, COLOUR = Image.fromarray(PIXELS[..., 0]), Image.fromarray(PIXELS)
MORE = Image.fromarray(PIXELS[::-1].copy())
RED, BLUE = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
ALPHA = np.where(np.arange(64).reshape(8, 8) % 3 == 0, 0, 255).astype(np.uint8)


def encoded(image: Image.Image, form: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def with_alpha(image: Image.Image, alpha: np.ndarray) -> Image.Image:
    made = image.convert("LA" if image.mode == "L" else "RGBA")
    made.putalpha(Image.fromarray(alpha))
    return made


def png(values: np.ndarray, kind: int, key: tuple[int, ...] = ()) -> bytes:
    """16 bits a colour, which Pillow does not write. kind: 0 grey, 2 RGB, 4 and 6 with alpha."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    height, width = values.shape[:2]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    transparent = chunk(b"tRNS", struct.pack(f">{len(key)}H", *key)) if key else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0))
        + transparent
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def signed_tiff() -> bytes:
    """8 signed bits a pixel: the tag of a plain one, changed in place."""
    plain = encoded(GREY, "TIFF", tiffinfo={339: 1})
    tag = struct.pack("<HHI", 339, 3, 1)
    return plain.replace(tag + struct.pack("<H", 1), tag + struct.pack("<H", 2))


def frames(form: str, first: Image.Image = COLOUR, second: Image.Image = MORE) -> bytes:
    # a copy: Pillow's encoders leave their settings in an image
    return encoded(first.copy(), form, save_all=True, append_images=[second.copy()])


def inputs(data, **options) -> torch.Tensor:
    made = load(workload(train=data, test=data), **options).train
    return made.batch(torch.arange(len(made)))[0]


def folder(place: Path, contents: bytes, suffix: str) -> Path:
    for label in ("cat", "dog"):
        (place / label).mkdir(parents=True)
        (place / label / f"0.{suffix}").write_bytes(contents)
    return place


def as_array(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.atleast_3d(np.asarray(image)).transpose(2, 0, 1) / np.float32(255))


PALETTE = COLOUR.quantize(16)
TRANSPARENT = {
    "RGBA": encoded(with_alpha(COLOUR, ALPHA), "PNG"),
    "half": encoded(with_alpha(COLOUR, np.full_like(ALPHA, 128)), "PNG"),
    "one pixel": encoded(with_alpha(COLOUR, np.where(np.arange(64) == 9, 254, 255).astype(np.uint8).reshape(8, 8)), "PNG"),
    "LA": encoded(with_alpha(GREY, ALPHA), "PNG"),
    "palette": encoded(PALETTE, "PNG", transparency=3),
    "palette of alphas": encoded(PALETTE, "PNG", transparency=bytes([0, 128, *[255] * 14])),
    "colour key": encoded(COLOUR, "PNG", transparency=tuple(map(int, PIXELS[0, 0]))),
    "grey key": encoded(GREY, "PNG", transparency=int(PIXELS[0, 0, 0])),
    "bit key": encoded(GREY.convert("1"), "PNG", transparency=0),
    "gif": encoded(PALETTE, "GIF", transparency=3),
    "webp": encoded(with_alpha(COLOUR, ALPHA), "WEBP", lossless=True),
    "tiff": encoded(with_alpha(COLOUR, ALPHA), "TIFF"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TRANSPARENT)
def test_transparent_pixels_are_refused_or_put_on_a_colour(kind, tmp_path):
    place = folder(tmp_path / "a", TRANSPARENT[kind], "png")
    with refused("cat/0.png has transparent pixels", "image_background=white", "alpha"):
        inputs(place)
    image = Image.open(io.BytesIO(TRANSPARENT[kind])).convert("RGBA")
    for name, colour in (("white", (255, 255, 255)), ("#ff0000", (255, 0, 0))):
        alpha = np.asarray(image)[..., 3:] / 255
        wanted = np.asarray(image)[..., :3] * alpha + np.array(colour) * (1 - alpha)
        found = inputs(place, image_background=name)
        assert found.shape[1] in ((1, 3) if name == "white" else (3,))
        assert np.abs(found[0].numpy().transpose(1, 2, 0) * 255 - wanted).max() <= 1
    assert not torch.equal(inputs(place, image_background="black"), inputs(place, image_background="white"))  # fmt: skip


OPAQUE = {
    "RGBA": (encoded(with_alpha(COLOUR, np.full_like(ALPHA, 255)), "PNG"), COLOUR),
    "LA": (encoded(with_alpha(GREY, np.full_like(ALPHA, 255)), "PNG"), GREY),
    "palette": (encoded(PALETTE, "PNG", transparency=bytes([255] * 16)), PALETTE.convert("RGB")),
    "colour key of no pixel": (encoded(COLOUR, "PNG", transparency=(0, 0, 0)), COLOUR),
    "grey key of no pixel": (encoded(GREY, "PNG", transparency=255), GREY),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", OPAQUE)
@pytest.mark.parametrize("background", [None, "red"])
def test_alpha_that_is_opaque_everywhere_passes(kind, background, tmp_path):
    contents, image = OPAQUE[kind]
    found = inputs(folder(tmp_path / "a", contents, "png"), image_background=background)
    torch.testing.assert_close(found[0], as_array(image))


@pytest.mark.parametrize("form", ["TIFF", "GIF", "PNG", "WEBP", "MPO"])
def test_frames_are_refused_or_one_is_chosen(form, tmp_path):
    suffix = {"MPO": "jpg"}.get(form, form.lower())
    place = folder(tmp_path / "a", frames(form, RED, BLUE), suffix)
    with refused(f"cat/0.{suffix} has 2 frames or pages", "image_frame=0"):
        inputs(place)
    for frame, image in enumerate((RED, BLUE)):
        torch.testing.assert_close(
            inputs(place, image_frame=frame)[0], as_array(image), atol=0.03, rtol=0
        )
    with refused("has 2 frames or pages, and image_frame=2", "give 0 to 1"):
        inputs(place, image_frame=2)


def test_files_of_one_frame_need_no_number(tmp_path):
    place = folder(tmp_path / "a", encoded(COLOUR, "TIFF"), "tif")
    for frame in (None, 0, 7):
        torch.testing.assert_close(inputs(place, image_frame=frame)[0], as_array(COLOUR))


def test_the_second_page_has_the_transparency_that_is_looked_at(tmp_path):
    place = folder(tmp_path / "a", frames("TIFF", COLOUR, with_alpha(COLOUR, ALPHA)), "tif")
    torch.testing.assert_close(inputs(place, image_frame=0)[0], as_array(COLOUR))
    with refused("transparent pixels"):
        inputs(place, image_frame=1)


def ppm(most: int) -> bytes:
    values = np.minimum(DEEP, most).astype(">u2" if most > 255 else "u1")
    return f"P6\n8 8\n{most}\n".encode() + values.tobytes()


DROPPED = {
    "png of 16 bits": (png(DEEP, 2), "png", "colours of more than 8 bits"),
    "png of 16 bits and alpha": (
        png(np.concatenate([DEEP, DEEP[..., :1]], 2), 6),
        "png",
        "colours of more than 8 bits",
    ),
    "grey png of 16 bits and alpha": (png(DEEP[..., :2], 4), "png", "colours of more than 8 bits"),
    "grey png of 16 bits and a key": (
        png(DEEP[..., 0], 0, (int(DEEP[0, 0, 0]),)),
        "png",
        "transparent pixels and more than 8 bits",
    ),
    "ppm of 16 bits": (ppm(65535), "ppm", "colours of more than 8 bits"),
    "ppm of 12 bits": (ppm(4095), "ppm", "colours of more than 8 bits"),
    "four channels": (
        encoded(Image.fromarray(np.dstack([PIXELS, ALPHA]), "RGBX"), "TIFF"),
        "tif",
        "more channels",
    ),
    "signed": (signed_tiff(), "tif", "signed numbers of 8 bits"),
}


@pytest.mark.parametrize("kind", DROPPED)
def test_what_pillow_would_drop_is_refused(kind, tmp_path, monkeypatch):
    contents, suffix, words = DROPPED[kind]
    place = folder(tmp_path / "a", contents, suffix)
    with refused(f"cat/0.{suffix} has {words}"):
        inputs(place)
    monkeypatch.setattr(
        "fedlsg.simulations.workloads.rows.image_folders.check_decoder", lambda *_: None
    )
    if "transparent" not in words:  # negative control: Pillow says nothing
        assert inputs(place, image_background="white").shape[2:] == (8, 8)


def test_what_is_read_whole_passes(tmp_path):
    for number, (contents, suffix, channels) in enumerate(
        [
            (png(DEEP[..., 0], 0), "png", 1),
            (png(DEEP[..., 0], 0, (7,)), "png", 1),  # the key of no pixel
            (ppm(100), "ppm", 3),
            (encoded(COLOUR, "BMP"), "bmp", 3),
            (encoded(COLOUR.convert("CMYK"), "JPEG"), "jpg", 3),
            (encoded(COLOUR.convert("CMYK"), "TIFF"), "tif", 3),
            (encoded(COLOUR, "TIFF", compression="tiff_lzw"), "tif", 3),
        ]
    ):
        place = folder(tmp_path / str(number), contents, suffix)
        assert inputs(place).shape == (2, channels, 8, 8)


def test_black_ink_reaches_the_model(tmp_path):
    ink = np.zeros((8, 8, 4), np.uint8)
    ink[:4, :, 3] = 200
    found = inputs(folder(tmp_path / "a", encoded(Image.fromarray(ink, "CMYK"), "TIFF"), "tif"))
    assert (found[0, :, :4] < 0.3).all()
    assert (found[0, :, 4:] == 1).all()


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (TRANSPARENT["RGBA"], "has transparent pixels"),
        (frames("TIFF"), "has 2 frames or pages"),
        (DROPPED["png of 16 bits"][0], "has colours of more than 8 bits"),
    ],
)
def test_the_same_in_tables_data_sets_and_lists(contents, words):
    datasets = pytest.importorskip("datasets")
    image = {"bytes": contents, "path": None}
    hub = datasets.Dataset.from_dict({"image": [image] * 2, "label": [0, 1]})
    forms = {
        "table": pd.DataFrame({"image": [contents] * 2, "label": [0, 1]}),
        "hub": hub.cast_column("image", datasets.Image()),
        "hub without decoding": hub.cast_column("image", datasets.Image(decode=False)),
        "list": [(Image.open(io.BytesIO(contents)), label) for label in (0, 1, 1)],
    }
    for data in forms.values():
        with refused("image", words):
            inputs(data)


def test_images_in_memory_stay_open_and_as_they_are(tmp_path):
    image = Image.open(io.BytesIO(frames("TIFF")))
    pairs = [(image, 0), (COLOUR, 1), (COLOUR.copy(), 1)]
    torch.testing.assert_close(inputs(pairs, image_frame=1)[0], as_array(MORE))
    torch.testing.assert_close(inputs(pairs, image_frame=0)[0], as_array(COLOUR))
    (tmp_path / "0.tif").write_bytes(frames("TIFF"))
    with Image.open(tmp_path / "0.tif") as closed:
        closed.load()
    with refused("was closed", "image.copy()"):
        inputs([(closed, 0), (COLOUR, 1), (COLOUR.copy(), 1)])


def test_the_choice_is_said_and_kept(tmp_path):
    place = folder(tmp_path / "a", frames("TIFF", with_alpha(COLOUR, ALPHA)), "tif")
    made = load(workload(train=place, test=place), image_background="white", image_frame=0)
    assert "transparent images on white; frame 0 of files that have several" in made.said
    assert (made.data["background"], made.data["frame"]) == ("white", 0)


@pytest.mark.parametrize("colour", ["none", "#ffffff80", "rgba(0,0,0,0)", "transparent", ""])
def test_a_background_is_an_opaque_colour(colour):
    with refused("image_background=", "expected an opaque colour, such as white"):
        load(workload(), image_background=colour)


def test_a_workload_without_files_of_images_takes_no_background():
    with refused("workload digits has no use for image_background"):
        workloads.load("digits", options=workloads.Options(image_background="white"))


def test_a_photograph_in_imagenets_folders_is_looked_at_before_the_run(tmp_path):
    plain = encoded(COLOUR, "JPEG")
    for split in ("train", "val"):
        folder(tmp_path / split, plain, "JPEG")
    (tmp_path / "train" / "cat" / "1.png").write_bytes(TRANSPARENT["RGBA"])
    with refused("cat/1.png has transparent pixels"):
        workloads.load("imagenet", data_dir=tmp_path)
    chosen = workloads.Options(image_background="white")
    made = workloads.load("imagenet", data_dir=tmp_path, options=chosen)
    assert made.train.batch(torch.arange(3))[0].shape == (3, 3, 224, 224)


def test_negative_control_a_reader_that_flattens_is_seen(tmp_path, monkeypatch):
    place = folder(tmp_path / "a", TRANSPARENT["RGBA"], "png")
    monkeypatch.setattr(image_contents, "_on_background", lambda image, *_: image.convert("RGB"))
    with pytest.raises(pytest.fail.Exception), refused("has transparent pixels"):
        inputs(place)
