"""What is read of images: one that would lose something as an array of grey or colour is refused.

    several frames or pages      one is read: ``image_frame`` says which
    transparent pixels           are put on the colour ``image_background``
    colours of 16 bits           Pillow reads 8 of them: refused
    more channels (TIFF)         Pillow drops them: refused
    signed numbers of 8 bits     Pillow reads -1 as 255: refused
An alpha channel of opaque pixels alone holds nothing that could be lost: it is dropped. CMYK, Lab
and other spaces become RGB by Pillow's formula. Pillow does not say how deep the colours of JPEG
2000 and AVIF are: they are read in 8 bits.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlsg.simulations.workloads.base import Options

SAMPLES_OF_16_BITS = re.compile(r";16[BLN]")
"""The end of Pillow's names of raw modes with 16 bits a colour, by their byte order."""
SAMPLE_FORMAT, SIGNED = 339, 2
"""TIFF's tag of the type of numbers, and its value for signed integers (TIFF 6.0, section 19)."""


class ContentError(ValueError):
    """Something of an image would be lost."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What is read of each image.

    size: pixels on a side to which it is scaled; None: as it is.
    background: the colour under transparent pixels, by Pillow's names.
    frame: its number, from 0.
    An image that needs a background or a frame is refused if that is None.
    """

    size: int | None = None
    background: str | None = None
    frame: int | None = None

    @staticmethod
    def by(options: Options, size: int | None = None) -> "Taken":
        """What the settings say, and ``size``."""
        return Taken(size=size, background=options.image_background, frame=options.image_frame)

    @property
    def facts(self) -> dict[str, Any]:
        """What a run records of it, in addition to ``Rows.facts``."""
        facts = {"background": self.background, "frame": self.frame}
        return {name: value for name, value in facts.items() if value is not None}

    def refuse(self) -> None:
        """Raise ValueError for a setting of images: a run that reads no image calls this."""
        for name, value in vars(self).items():
            if value is not None:
                raise ValueError(
                    f"image_{name}={value!r} says how image files and images of Pillow are read, "
                    "and the inputs are numbers, texts or what a transform makes of a Dataset's "
                    f"items: leave image_{name} out"
                )


def choose_frame(image: Any, name: str, frame: int | None) -> None:
    """Seek the frame of an opened image that is read.

    Raises ContentError for several frames without ``frame``, and for a ``frame`` beyond the last.
    """
    try:
        frames = getattr(image, "n_frames", 1)
    except ValueError:
        raise ContentError(
            f"{name} was closed, so its other frames or pages cannot be counted: give "
            "image.copy(), or the bytes of the file"
        ) from None
    if frames <= 1:
        return
    if frame is None:
        raise ContentError(
            f"{name} has {frames} frames or pages, and one is read: image_frame=0 takes the first "
            "one of every such file; to use all, save each as an image of its own, or give arrays"
        )
    if frame >= frames:
        raise ContentError(
            f"{name} has {frames} frames or pages, and image_frame={frame} is the number of "
            f"none: give 0 to {frames - 1}"
        )
    image.seek(frame)


def is_deep(image: Any) -> bool:
    """Whether an image has more than 8 bits a pixel, which Pillow keeps."""
    return bool(image.mode.startswith(("I", "F")))


def check_decoder(image: Any, name: str) -> None:
    """Raise ContentError for an opened image of which Pillow's decoder drops something.

    A tile of Pillow is (decoder, box, offset, arguments). The first argument is the raw mode of the
    file, in which X is a channel that is dropped. The last one of PPM files is their white value.
    """
    if is_deep(image):
        return
    tags = getattr(image, "tag_v2", {})
    lost = ""
    for decoder, _, _, arguments in getattr(image, "tile", ()):
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        raw_mode = str(arguments[0])
        is_deep_ppm = decoder.startswith("ppm") and arguments[-1] > 255
        if SAMPLES_OF_16_BITS.search(raw_mode) or is_deep_ppm:
            lost = "colours of more than 8 bits, of which 8 are read"
        elif "X" in raw_mode and tags:
            lost = "more channels than its colours, which are not read"
    if SIGNED in np.atleast_1d(tags.get(SAMPLE_FORMAT, 0)):
        lost = "signed numbers of 8 bits, which are read as unsigned ones"
    if lost:
        raise ContentError(
            f"{name} has {lost}: convert it to 8 bits a colour, grey or RGB, or give arrays (N, "
            "channels, height, width)"
        )


def without_transparency(image: Any, name: str, background: str | None) -> Any:
    """A loaded image in grey or RGB; one of more than 8 bits in its own mode.

    Raises ContentError for transparent pixels without a background, and for those of deep images.
    """
    if not image.has_transparency_data:
        if is_deep(image) or image.mode == "RGB":
            return image
        return image.convert("L" if image.mode in ("L", "1") else "RGB")
    if is_deep(image):
        if (np.asarray(image) == image.info["transparency"]).any():
            raise ContentError(
                f"{name} has transparent pixels and more than 8 bits a pixel: give it values "
                "without transparency"
            )
        return image
    return _on_background(image, name, background)


def _on_background(image: Any, name: str, background: str | None) -> Any:
    """An image with an alpha channel in grey or RGB, on a background unless all is opaque.

    The result is grey if both the image and the background are.
    """
    from PIL import Image, ImageColor

    grey = image.mode in ("L", "1", "LA", "La")
    # La (premultiplied alpha) has no conversion to RGBA
    rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    least_alpha, _ = rgba.getchannel("A").getextrema()
    if least_alpha < 255:
        if background is None:
            raise ContentError(
                f"{name} has transparent pixels (an alpha channel, or a transparent colour), and "
                "models take grey or RGB: image_background=white puts such images on white; or "
                "give arrays of four channels"
            )
        colour = ImageColor.getrgb(background)
        grey = grey and len(set(colour)) == 1
        rgba = Image.alpha_composite(Image.new("RGBA", rgba.size, colour), rgba)
    return rgba.convert("L" if grey else "RGB")
