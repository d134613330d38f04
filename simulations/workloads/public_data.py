"""Public inputs that a user names: of a probe (``source``), or rows to train on, in the form of a
workload.

auto          the first of the workload's own: a user's ``probe=`` function, dead leaves for images,
              bags of words
leaves, pink  synthetic images
tokens        bags of words of the tokenizer's vocabulary
data:NAME     a built-in data set, or the path of public data in a form that the workload reads
FILE.py:NAME  a user's function(count, generator): inputs, or (inputs, targets)

Synthetic inputs and a user's function are given no data. The epsilon of a run covers the training
split alone. Rows of it that come in through another door, as "public" ones, would not be covered by
any epsilon, so a workload's own data are refused by name, by path and by content.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from fedlsg import bounded, user_code
from fedlsg.carriers.probe.carrier import Draw, ProbeSource
from fedlsg.config.choices import did_you_mean
from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import DEFAULT, LoadedWorkload, Options, Progress, Split, silent
from fedlsg.simulations.workloads.base.cache import cache_folder
from fedlsg.simulations.workloads.base.public_inputs import CheckedDraw, Pixels, find_pixels
from fedlsg.simulations.workloads.base.split import NoRows, Stored
from fedlsg.simulations.workloads.rows import Columns
from fedlsg.simulations.workloads.rows.image_contents import Taken
from fedlsg.simulations.workloads.rows.read import read_rows

AT_ONCE = 1024
ANYWHERE = ("hf-image", "hf-text")
"""Workloads that are not data sets by their name alone."""
MASK = "attention_mask"
LEVELS, OFFSET = 100, 0.123
"""Of brightness, in which images of different ranges are compared."""


@dataclass(frozen=True, eq=False)
class PublicRows:
    """Rows of a public data set as inputs of a workload; ``draw(count, generator)`` takes some at
    random.

    split: the rows as the workload would store them.
    given: of images, as they are stored, and how.
    targets: whether a draw gives the rows' targets too.
    labelled: False where the labels of ``split`` are zeros that stand for none.
    """

    split: Split
    given: tuple[Split, Pixels] | None = None
    targets: bool = False
    labelled: bool = True

    def __call__(self, count: int, generator: torch.Generator) -> Any:
        """``count`` rows, different ones as long as there are enough."""
        rounds = range(0, max(count, 1), len(self.split))
        order = torch.cat([torch.randperm(len(self.split), generator=generator) for _ in rounds])
        inputs, targets = self.split.batch(order[:count])
        return (inputs, targets) if self.targets else inputs


class Fitted:
    """Stored images of a public data set, as a workload would store them: of its size, with its
    channels.
    """

    def __init__(self, inputs: Stored, stored: Pixels, wanted: Pixels) -> None:
        self._inputs = inputs
        self._stored = stored
        self._wanted = replace(wanted, prepare=as_stored)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, rows: np.ndarray, /) -> Any:
        return self._wanted.inputs(
            fitted(self._stored.images(self._inputs[rows]), self._wanted.shape)
        )


def as_stored(stored: np.ndarray) -> np.ndarray:
    """A ``prepare`` that changes nothing."""
    return stored


def _images_of(
    given: Split, stored: Pixels, wanted: Pixels, *, labelled: bool = True
) -> PublicRows:
    split = Split(
        inputs=Fitted(given.inputs, stored, wanted), labels=given.labels, prepare=wanted.prepare
    )
    return PublicRows(split, (given, stored), labelled=labelled)


def public_data(
    name: str,
    workload: LoadedWorkload,
    *,
    data_dir: Path | None,
    options: Options,
    progress: Progress = silent,
    setting: str = "source",
) -> PublicRows:
    """The rows of a built-in data set (its training split), or of a path, as inputs of
    ``workload``.

    A path: a folder of images, .csv, .parquet or .pt (inputs, or a pair of inputs and targets) for
    images; otherwise what a client's own rows of the workload may be. Images are scaled to the
    workload's size and channels.
    ``options``: those of the workload; a text data set takes its model from them. ``setting``:
    which one names the rows, for errors.
    Raises ValueError for the workload's own training or test data, and for rows that do not fit the
    model; OSError.
    """
    given = f"{setting}=data:{name}"
    if not name:
        raise ValueError(
            f"expected {setting} as data:NAME or data:PATH, got {given.partition('=')[2]!r}"
        )
    named = name in workloads.names() and name not in ANYWHERE

    def rows_for(one: LoadedWorkload) -> PublicRows:
        if named:
            return _by_name(name, one, data_dir, options, progress, given)
        path = Path(name).expanduser().resolve()
        return _by_path(path, one, options, cache_folder(None), progress, given)

    rows, raw = rows_for(workload), workload.raw
    rows = replace(rows, targets=workload.num_classes is None and rows.labelled)
    check_fits(rows.split.batch(torch.zeros(1, dtype=torch.int64))[0], workload, given)
    if raw is None or (named and raw.pixels is None):
        refuse_overlap(rows, workload, given)
    else:  # a copy in another range of values has other features
        refuse_overlap(rows_for(raw), raw, given)
    return rows


def _by_name(
    name: str,
    workload: LoadedWorkload,
    data_dir: Path | None,
    options: Options,
    say: Progress,
    given: str,
) -> PublicRows:
    if name == workload.name:
        raise _own_data(given, workload, "it is the run's own workload")
    texts = Options(
        model=options.model, pretrained=options.pretrained, max_length=options.max_length
    )
    known = texts if "tokens" in workload.synthetic else Options()
    named = workloads.load(name, data_dir=data_dir, options=known, progress=say)
    if named.pixels is None or workload.pixels is None:
        return PublicRows(named.train)
    return _images_of(named.train, named.pixels, workload.pixels)


def _by_path(
    path: Path,
    workload: LoadedWorkload,
    options: Options,
    cache: Path,
    say: Progress,
    given: str,
) -> PublicRows:
    if not path.exists():
        known = ", ".join(
            name for name in workloads.names() if name not in (*ANYWHERE, workload.name)
        )
        raise ValueError(
            f"{given}: there is no such file or folder, and no data set of this name; known are "
            f"{known}"
        )
    for place in (place.resolve() for place in workload.places):
        if path == place or place in path.parents or path in place.parents:
            raise _own_data(given, workload, "it holds the files of the run's own workload")
    if workload.pixels is not None:
        return _images(path, workload.pixels, options, say, given)
    if workload.read is None:
        raise ValueError(f"{given}: workload {workload.name} reads no rows from a path")
    return PublicRows(workload.read(path, cache))


def _images(path: Path, wanted: Pixels, options: Options, say: Progress, given: str) -> PublicRows:
    side = max(wanted.shape[1:])
    columns = Columns(
        inputs=None,
        targets=None,
        more=(),
        transform=None,
        images=Taken.by(options, side),
        progress=say,
    )
    data, labelled = _tensors(path) if path.suffix == ".pt" else (path, True)
    rows = read_rows(data, columns, given.partition("=")[0])
    first_rows = rows.inputs[np.arange(min(len(rows.targets), AT_ONCE))]
    stored = find_pixels(first_rows, rows.prepare)
    if stored is None:
        pixels = np.asarray(first_rows)
        raise ValueError(
            f"{given} holds no images, which the run's workload has: expected rows of (channels, "
            f"height, width) or (height, width, channels), uint8 or float32, got "
            f"{pixels.shape[1:]} of {pixels.dtype}"
        )
    given_rows = Split(inputs=rows.inputs, labels=rows.targets, prepare=rows.prepare)
    return _images_of(given_rows, stored, wanted, labelled=labelled)


def _tensors(path: Path) -> tuple[tuple[Any, Any], bool]:
    """Inputs and targets of a file of tensors, zeros where it has no targets; and whether it has
    some.
    """
    try:
        bounded.check_stored(path)
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip and pickle raise their own
        raise ValueError(
            f"cannot read {path}: expected a tensor, or a pair of inputs and targets, by torch.save"
        ) from error
    if isinstance(saved, Tensor):
        return (saved, torch.zeros(len(saved), dtype=torch.int64)), False
    if isinstance(saved, tuple | list) and len(saved) == 2:
        return (saved[0], saved[1]), True
    raise ValueError(
        f"{path} holds {type(saved).__name__}: expected a tensor, or a pair of inputs and targets"
    )


def fitted(images: Float[Tensor, "b c h w"], shape: tuple[int, int, int]) -> Tensor:
    """Images of another size or other channels in this shape: grey is repeated, colours are
    averaged.
    """
    if images.shape[2:] != shape[1:]:
        images = functional.interpolate(
            images, shape[1:], mode="bilinear", antialias=True, align_corners=False
        )
    if images.shape[1] == shape[0]:
        return images
    return images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)


def check_fits(inputs: Any, workload: LoadedWorkload, given: str) -> None:
    """Raise ValueError unless a row has the types and shapes of the workload's inputs; texts may
    have any length.
    """
    offered = forms(inputs)
    wanted = forms(workload.test.batch(torch.zeros(1, dtype=torch.int64))[0])
    if offered != wanted:
        raise ValueError(
            f"{given} gives inputs {offered}, and the model of {workload.name} takes {wanted}"
        )


def forms(inputs: Any) -> dict[str, str]:
    """Type and shape of a row by name; of texts the type alone."""
    fields = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
    return {
        key: f"{value.dtype}" if MASK in fields else f"{value.dtype} {tuple(value.shape[1:])}"
        for key, value in fields.items()
    }


def refuse_overlap(rows: PublicRows, workload: LoadedWorkload, given: str) -> None:
    """Raise ValueError if a row equals one of the workload's training or test rows, as the model
    sees them.

    Images are also compared whatever the range of their values: a copy's may be read as another
    one. This reads private rows, and its only effect is to stop. That is acceptable in a
    simulation, where one person holds all data and a run that stops tells nobody else anything. A
    deployment's server has no training split here (``NoRows``), and a client must not refuse by its
    rows: there the public test rows alone are compared. Equal rows are found, near copies (cropped,
    compressed again) are not.
    """
    everything = (workload.train, *workload.left_out, *workload.tests.values())
    splits = [split for split in everything if not isinstance(split, NoRows)]
    of_splits = {
        one
        for split in splits
        for part in _parts(len(split))
        for one in digests(split.batch(part)[0])
    }
    shared = sum(
        digest in of_splits
        for part in _parts(len(rows.split))
        for digest in digests(rows.split.batch(part)[0])
    )
    if not shared and rows.given is not None and workload.pixels is not None:
        (public, stored), wanted = rows.given, workload.pixels
        of_splits = {one for split in splits for one in _rangeless(split, wanted, wanted.shape)}
        shared = sum(digest in of_splits for digest in _rangeless(public, stored, wanted.shape))
    if shared:
        raise _own_data(
            given, workload, f"{shared} of its {len(rows.split)} rows are rows of that workload"
        )


def _rangeless(split: Split, pixels: Pixels, shape: tuple[int, int, int]) -> Iterator[bytes]:
    """Digests of the images of a split in a shape, from black 0 to white 1 each; none of an image
    in one colour.
    """
    for part in _parts(len(split)):
        images = fitted(pixels.images(split.inputs[part.numpy()]), shape).flatten(1)
        least, most = images.amin(1, keepdim=True), images.amax(1, keepdim=True)
        # no stored value of 8 bits is near a whole one
        levels = (images - least) / (most - least) * LEVELS + OFFSET
        yield from digests(levels.floor()[(most > least).squeeze(1)].to(torch.int16))


def digests(inputs: Any) -> Iterator[bytes]:
    """16 bytes for each row of a batch, whatever a text is padded to."""
    if isinstance(inputs, Mapping) and MASK in inputs:
        rows = [
            ids[mask].numpy()
            for ids, mask in zip(inputs["input_ids"], inputs[MASK].bool(), strict=True)
        ]
    else:
        fields = (
            [value for _, value in sorted(inputs.items())]
            if isinstance(inputs, Mapping)
            else [inputs]
        )
        rows = list(
            np.concatenate(
                [value.flatten(1).contiguous().numpy().view(np.uint8) for value in fields], axis=1
            )
        )
    for row in rows:
        yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _parts(count: int) -> tuple[Int64[Tensor, " b"], ...]:
    parts: tuple[Tensor, ...] = torch.arange(count).split(AT_ONCE)
    return parts


def _own_data(given: str, workload: LoadedWorkload, why: str) -> ValueError:
    return ValueError(
        f"{given} is refused: {why} ({workload.name}), whose training rows are private and whose "
        "test rows measure accuracy; name other data that are public"
    )


def probe_source(
    workload: LoadedWorkload,
    spec: str = "auto",
    *,
    data_dir: Path | None = None,
    options: Options = DEFAULT,
) -> ProbeSource:
    """The source that ``spec`` names, with the workload's loss and classes; see the top of this
    file.

    ``data_dir``, ``options``: as the workload was loaded with; they matter for ``data:`` alone.
    Guarantee: what it draws does not depend on a training row.
    Raises ValueError for an unknown word, a source that the workload has not, and the workload's
    own data.
    """
    name, draw = _find_source(workload, spec, data_dir, options)
    return ProbeSource(name=name, draw=draw, loss=workload.loss, num_classes=workload.num_classes)


def _find_source(
    workload: LoadedWorkload, spec: str, data_dir: Path | None, options: Options
) -> tuple[str, Draw]:
    known = workload.synthetic
    if spec.startswith(user_code.DATA):
        name = spec.removeprefix(user_code.DATA)
        rows = public_data(name, workload, data_dir=data_dir, options=options)
        return user_code.shown(spec), rows
    if spec in known:
        return spec, known[spec]
    if spec == "auto" and known:
        return next(iter(known.items()))
    if user_code.is_reference(spec):
        name = user_code.shown(spec)
        return name, CheckedDraw(user_code.load(spec, "source"), name)
    there = (
        f"it has {', '.join(known)}{did_you_mean(spec, known)}"
        if known
        else "none is known for its inputs"
    )
    raise ValueError(
        f"workload {workload.name} has no probe source {spec!r}: {there}; give a function, "
        "fedlsg.Workload(..., probe=lambda count, generator: torch.randn(count, 30, "
        "generator=generator)) or source=mine.py:draw, or public data of the same form, "
        "source=data:PATH"
    )
