"""What an image file holds and one array of grey or colour does not: refused, or taken as a setting
says.

    several frames or pages      one is read: ``image_frame`` says which
    transparent pixels           are put on the colour ``image_background``
    colours of 16 bits           Pillow reads 8 of them: refused
    more channels (TIFF)         Pillow drops them: refused
    signed numbers of 8 bits     Pillow reads -1 as 255: refused
Nothing is lost, so nothing is refused, where all pixels are opaque. CMYK, Lab and other spaces
become RGB by Pillow's formula. Pillow does not say how deep the colours of JPEG 2000 and AVIF are:
they come in 8 bits.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlsg.simulations.workloads.base import Options

SAMPLES_OF_16_BITS = re.compile(r";16[BLN]")
SAMPLE_FORMAT, SIGNED = 339, 2
"""The tag of TIFF that says the type of its numbers, and its value for signed whole ones."""


class ContentError(ValueError):
    """Something of an image would be lost."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What is taken of an image. size: pixels on a side to which it is scaled; None: as it is.

    background: a colour of Pillow's names.
    frame: from 0. None: an image that needs it is refused.
    """

    size: int | None = None
    background: str | None = None
    frame: int | None = None

    @staticmethod
    def by(options: Options, size: int | None = None) -> "Taken":
        """As the settings say."""
        return Taken(size=size, background=options.image_background, frame=options.image_frame)

    @property
    def facts(self) -> dict[str, Any]:
        """What a run keeps of it, next to ``Rows.facts``."""
        facts = {"background": self.background, "frame": self.frame}
        return {name: value for name, value in facts.items() if value is not None}

    def refuse(self) -> None:
        """Raise ValueError for settings of images, where no image is read."""
        for name, value in vars(self).items():
            if value is not None:
                raise ValueError(
                    f"image_{name}={value!r} says how image files and images of Pillow are read, "
                    "and the inputs are numbers, texts or what a transform makes of a Dataset's "
                    f"items: leave image_{name} out"
                )


def choose_frame(image: Any, name: str, frame: int | None) -> None:
    """Turn an opened image to the frame that is read. Raises ContentError for several without a
    number, and for too few.
    """
    try:
        frames = getattr(image, "n_frames", 1)
    except ValueError:
        raise ContentError(
            f"{name} was closed, so its other frames or pages cannot be counted: give "
            "image.copy(), or the bytes of the file"
        ) from None
    if frame is None and frames > 1:
        raise ContentError(
            f"{name} has {frames} frames or pages, and one is read: image_frame=0 takes the first "
            "one of every such file; to use all, save each as an image of its own, or give arrays"
        )
    if frames > 1 and frame is not None:
        if frame >= frames:
            raise ContentError(
                f"{name} has {frames} frames or pages, and image_frame={frame} is the number of "
                f"none: give 0 to {frames - 1}"
            )
        image.seek(frame)


def check_decoder(image: Any, name: str) -> None:
    """Raise ContentError for an opened image of which Pillow's decoder drops something."""
    if image.mode.startswith(("I", "F")):
        return
    tags = getattr(image, "tag_v2", {})
    lost = ""
    for tile in getattr(image, "tile", ()):
        arguments = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        raw = str(arguments[0])
        if SAMPLES_OF_16_BITS.search(raw) or (tile[0].startswith("ppm") and arguments[-1] > 255):
            lost = "colours of more than 8 bits, of which 8 are read"
        elif "X" in raw and tags:
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
    deep = image.mode.startswith(("I", "F"))
    if not image.has_transparency_data:
        grey = image.mode in ("L", "1")
        return image if deep or image.mode == "RGB" else image.convert("L" if grey else "RGB")
    if deep:
        if (np.asarray(image) == image.info["transparency"]).any():
            raise ContentError(
                f"{name} has transparent pixels and more than 8 bits a pixel: give it values "
                "without transparency"
            )
        return image
    return _on_background(image, name, background)


def _on_background(image: Any, name: str, background: str | None) -> Any:
    from PIL import Image, ImageColor

    grey = image.mode in ("L", "1", "LA", "La")
    whole = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    opaque = whole.getchannel("A").getextrema()[0] == 255
    if not opaque:
        if background is None:
            raise ContentError(
                f"{name} has transparent pixels (an alpha channel, or a transparent colour), and "
                "models take grey or RGB: image_background=white puts such images on white; or "
                "give arrays of four channels"
            )
        colour = ImageColor.getrgb(background)
        grey = grey and len({*colour}) == 1
        whole = Image.alpha_composite(Image.new("RGBA", whole.size, colour), whole)
    return whole.convert("L" if grey else "RGB")
