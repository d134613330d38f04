"""Public inputs that a user names, for a probe (``source``) or to train on, as a workload has them.

auto          the first of the workload's own: a user's ``probe=`` function, dead leaves for images,
              bags of words
leaves, pink  synthetic images
tokens        bags of words of the tokenizer's vocabulary
data:NAME     a built-in data set, or the path of public data in a form that the workload reads
FILE.py:NAME  a user's function(count, generator): inputs, or (inputs, targets)

Synthetic inputs and a user's function are given no data. The epsilon of a run covers the training
split alone. No epsilon would cover training rows that are named as public ones. So a workload's own
data are refused by name, by path and by content.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
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
"""Rows that are read or compared at a time."""
NOT_DATA_SETS = ("hf-image", "hf-text")
"""Workloads that are not data sets by their name alone."""
MASK = "attention_mask"
"""The name of the tensor in which 0 marks the padding of texts."""
LEVELS = 100
"""Levels of brightness from black to white, in which images of different ranges are compared."""
OFFSET = 0.123
"""Added to levels before rounding: no stored value of 8 bits is then on the edge of a level."""


@dataclass(frozen=True, eq=False)
class PublicRows:
    """Rows of a public data set as inputs of a workload; a call draws some at random.

    split: the rows as the workload would store them.
    given: for images, the rows as the data set stores them, and how; else None.
    targets: whether a draw gives the rows' targets, too.
    labelled: False if the data have no labels; those of ``split`` are then zeros.
    """

    split: Split
    given: tuple[Split, Pixels] | None = None
    targets: bool = False
    labelled: bool = True

    def __call__(self, count: int, generator: torch.Generator) -> Any:
        """``count`` rows, all different if there are enough."""
        rounds = range(0, max(count, 1), len(self.split))
        order = torch.cat([torch.randperm(len(self.split), generator=generator) for _ in rounds])
        inputs, targets = self.split.batch(order[:count])
        return (inputs, targets) if self.targets else inputs


class Fitted:
    """Stored images of a public data set, in the size and with the channels of a workload.

    inputs: the images as the data set stores them.
    stored: how it stores them.
    wanted: how the workload stores images.
    """

    def __init__(self, inputs: Stored, stored: Pixels, wanted: Pixels) -> None:
        self._inputs = inputs
        self._stored = stored
        self._wanted = replace(wanted, prepare=as_stored)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, rows: np.ndarray, /) -> Any:
        images = self._stored.images(self._inputs[rows])
        return self._wanted.inputs(fit(images, self._wanted.shape))


def as_stored(stored: np.ndarray) -> np.ndarray:
    """A ``prepare`` that changes nothing."""
    return stored


def _images_of(
    given: Split, stored: Pixels, wanted: Pixels, *, labelled: bool = True
) -> PublicRows:
    """Images that are ``stored`` in one way as rows in the way that is ``wanted``."""
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
    """Rows of a built-in data set (its training split), or of a path, as inputs of ``workload``.

    For images a path is a folder of images, a .csv, .parquet or .pt file (inputs, or a pair of
    inputs and targets). Otherwise it is what a client's own rows of the workload may be. Images are
    scaled to the workload's size and channels.

    options: those of the workload; a text data set takes its model from them.
    setting: the one that names the rows, for messages.
    Raises ValueError for the workload's own training or test data, and for rows that do not fit the
    model; OSError for a path that cannot be read.
    """
    given = f"{setting}=data:{name}"
    if not name:
        raise ValueError(f"expected {setting} as data:NAME or data:PATH, got 'data:'")
    is_built_in = name in workloads.names() and name not in NOT_DATA_SETS

    def rows_for(target: LoadedWorkload) -> PublicRows:
        if is_built_in:
            return _by_name(name, target, data_dir, options, progress, given)
        path = Path(name).expanduser().resolve()
        return _by_path(path, target, options, cache_folder(None), progress, given)

    rows = rows_for(workload)
    rows = replace(rows, targets=workload.num_classes is None and rows.labelled)
    check_fits(rows.split.batch(torch.zeros(1, dtype=torch.int64))[0], workload, given)
    raw = workload.raw
    if raw is None or (is_built_in and raw.pixels is None):
        refuse_overlap(rows, workload, given)
    else:  # a copy in another range of values has other features: compare what they are made of
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
    """The training rows of a built-in data set; ``given``: the setting in messages."""
    if name == workload.name:
        raise _own_data(given, workload, "it is the run's own workload")
    of_model = Options()
    if "tokens" in workload.synthetic:  # texts, which are stored as tokens of the model
        of_model = Options(
            model=options.model, pretrained=options.pretrained, max_length=options.max_length
        )
    public = workloads.load(name, data_dir=data_dir, options=of_model, progress=say)
    if public.pixels is None or workload.pixels is None:
        return PublicRows(public.train)
    return _images_of(public.train, public.pixels, workload.pixels)


def _by_path(
    path: Path,
    workload: LoadedWorkload,
    options: Options,
    cache: Path,
    say: Progress,
    given: str,
) -> PublicRows:
    """The rows of a path; ``given``: the setting in messages."""
    if not path.exists():
        others = (*NOT_DATA_SETS, workload.name)
        known = ", ".join(name for name in workloads.names() if name not in others)
        raise ValueError(
            f"{given}: there is no such file or folder, and no data set of this name; known are "
            f"{known}"
        )
    for place in map(Path.resolve, workload.places):
        if path == place or place in path.parents or path in place.parents:
            raise _own_data(given, workload, "it holds the files of the run's own workload")
    if workload.pixels is not None:
        return _images(path, workload.pixels, options, say, given)
    if workload.read is None:
        raise ValueError(f"{given}: workload {workload.name} reads no rows from a path")
    return PublicRows(workload.read(path, cache))


def _images(path: Path, wanted: Pixels, options: Options, say: Progress, given: str) -> PublicRows:
    """The images of a path as rows in the way that is ``wanted``."""
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
    """Inputs and targets of a file of tensors; and False if it has no targets, which are then 0."""
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


def fit(images: Float[Tensor, "b c h w"], shape: tuple[int, int, int]) -> Tensor:
    """Images in another size and with other channels: grey is repeated, colours are averaged."""
    if images.shape[2:] != shape[1:]:
        images = functional.interpolate(
            images, shape[1:], mode="bilinear", antialias=True, align_corners=False
        )
    if images.shape[1] == shape[0]:
        return images
    return images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)


def check_fits(inputs: Any, workload: LoadedWorkload, given: str) -> None:
    """Raise ValueError unless a row has the types and shapes of the workload's inputs.

    Texts may have any length.
    """
    offered = forms(inputs)
    wanted = forms(workload.test.batch(torch.zeros(1, dtype=torch.int64))[0])
    if offered != wanted:
        raise ValueError(
            f"{given} gives inputs {offered}, and the model of {workload.name} takes {wanted}"
        )


def forms(inputs: Any) -> dict[str, str]:
    """The type and shape of each input of a row, by name; the type alone for texts."""
    fields = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
    return {
        key: f"{value.dtype}" if MASK in fields else f"{value.dtype} {tuple(value.shape[1:])}"
        for key, value in fields.items()
    }


def refuse_overlap(rows: PublicRows, workload: LoadedWorkload, given: str) -> None:
    """Raise ValueError if a row equals one of the workload's training or test rows.

    Rows are compared as the model sees them. Images are also compared without the range of their
    values, because a copy may be read in another range. Near copies (cropped, compressed again) are
    not found.

    This reads private rows, and its only effect is to stop. That is acceptable in a simulation,
    where one person holds all data and a run that stops tells nobody else anything. A deployment's
    server has no training split here (``NoRows``), and a client must not refuse by its rows. There
    the public test rows alone are compared.
    """
    everything = (workload.train, *workload.left_out, *workload.tests.values())
    splits = [split for split in everything if not isinstance(split, NoRows)]
    own = set(chain.from_iterable(map(_digests_of, splits)))
    shared = sum(digest in own for digest in _digests_of(rows.split))
    if not shared and rows.given is not None and workload.pixels is not None:
        (public, stored), wanted = rows.given, workload.pixels
        own = {each for split in splits for each in _rangeless(split, wanted, wanted.shape)}
        shared = sum(digest in own for digest in _rangeless(public, stored, wanted.shape))
    if shared:
        raise _own_data(
            given, workload, f"{shared} of its {len(rows.split)} rows are rows of that workload"
        )


def _digests_of(split: Split) -> Iterator[bytes]:
    """Digests of the rows of a split as the model sees them."""
    for part in _parts(len(split)):
        yield from digests(split.batch(part)[0])


def _rangeless(split: Split, pixels: Pixels, shape: tuple[int, int, int]) -> Iterator[bytes]:
    """Digests of the images of a split in a shape, each stretched from its black to its white.

    An image in one colour has none.
    """
    for part in _parts(len(split)):
        images = fit(pixels.images(split.inputs[part.numpy()]), shape).flatten(1)
        least, most = images.amin(1, keepdim=True), images.amax(1, keepdim=True)
        levels = (images - least) / (most - least) * LEVELS + OFFSET
        yield from digests(levels.floor()[(most > least).squeeze(1)].to(torch.int16))


def digests(inputs: Any) -> Iterator[bytes]:
    """16 bytes for each row of a batch, which do not depend on the padding of texts."""
    rows: Iterable[np.ndarray]
    if isinstance(inputs, Mapping) and MASK in inputs:
        pairs = zip(inputs["input_ids"], inputs[MASK].bool(), strict=True)
        rows = (ids[mask].numpy() for ids, mask in pairs)
    else:
        fields = [inputs]
        if isinstance(inputs, Mapping):
            fields = [inputs[name] for name in sorted(inputs)]
        columns = [value.flatten(1).contiguous().numpy().view(np.uint8) for value in fields]
        rows = np.concatenate(columns, axis=1)
    for row in rows:
        yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _parts(count: int) -> tuple[Int64[Tensor, " b"], ...]:
    """The numbers of ``count`` rows, AT_ONCE at a time."""
    parts: tuple[Tensor, ...] = torch.arange(count).split(AT_ONCE)
    return parts


def _own_data(given: str, workload: LoadedWorkload, why: str) -> ValueError:
    """The error about data of the run's own workload."""
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
    """The source of public inputs that ``spec`` names, with the workload's loss and classes.

    spec: see the top of this file.
    data_dir, options: those that the workload was loaded with; only ``data:`` needs them.
    Guarantee: what it draws does not depend on a training row.
    Raises ValueError for an unknown word, a source that the workload has not, and the workload's
    own data.
    """
    name, draw = _find_source(workload, spec, data_dir, options)
    return ProbeSource(name=name, draw=draw, loss=workload.loss, num_classes=workload.num_classes)


def _find_source(
    workload: LoadedWorkload, spec: str, data_dir: Path | None, options: Options
) -> tuple[str, Draw]:
    """The name of a source, and its draw."""
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
    there = "none is known for its inputs"
    if known:
        there = f"it has {', '.join(known)}{did_you_mean(spec, known)}"
    raise ValueError(
        f"workload {workload.name} has no probe source {spec!r}: {there}; give a function, "
        "fedlsg.Workload(..., probe=lambda count, generator: torch.randn(count, 30, "
        "generator=generator)) or source=mine.py:draw, or public data of the same form, "
        "source=data:PATH"
    )
