"""Pre-trained weights from a local file or the Hugging Face hub.

They become the public initial weights of a run, so they must come from public data: the epsilon of
a run does not cover the data that they were trained on. Files are read as plain tensors; nothing in
them is executed.

A run keeps the digest of the file in its settings: every process that builds the model has these
weights, or stops.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg import bounded
from fedlsg.carriers import find_classifier
from fedlsg.simulations.models.encoder_source import reason_of

CLASSIFIER = "classifier"
"""The path of the head in models of fedlsg."""
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
"""Suffixes of files of weights."""
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
"""Files searched for in a hub repository, in this order, if the source names none."""
_HUB_SOURCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(:(?P<file>.+))?")
HERE = (".", "~", "pretrained/", "runs/")
"""Beginnings of sources that are on this machine or nowhere."""
FOLDER_FILE = "model.safetensors"
"""The file of weights in a folder that fedlsg, or examples/convert_weights.py, wrote."""
FACTS = ("config.json", "fedlsg-run.json")
"""Files with facts about the weights in such a folder; the first that has some is read."""
_MAX_SHOWN = 8
"""The most names of parameters in a message."""

Say = Callable[[str], None]
"""Is called with a line of text."""


def _silent(line: str) -> None:
    """Says nothing."""


def digest_of(source: str) -> str:
    """SHA-256 of the file of a source, 64 hex digits. Raises as ``find_weights``."""
    return file_digest(find_weights(source))


def is_on_hub(source: str) -> bool:
    """Whether a source has the form of a hub repository, and not that of a local path.

    No file is looked for. ``pretrained/`` and ``runs/`` are folders in which fedlsg writes weights,
    and no owners of repositories.
    """
    match = _HUB_SOURCE.fullmatch(source)
    return (
        match is not None
        and not source.startswith(HERE)
        and not match["repository"].endswith(SUFFIXES)
    )


def file_digest(file: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def facts_of(source: str) -> Mapping[str, Any]:
    """Facts that fedlsg wrote about the weights, next to their file; empty for other weights."""
    folder = Path(source).expanduser()
    if not folder.exists():  # a name of the hub: files of the working directory are not about it
        return {}
    folder = folder if folder.is_dir() else folder.parent
    for name in FACTS:
        try:
            facts = bounded.read_json(folder / name)
        except (OSError, ValueError):
            continue
        if isinstance(facts, Mapping) and "fedlsg" in facts:
            return facts
    return {}


def with_pretrained(
    builder: Callable[[], nn.Module], source: str, **how: Any
) -> Callable[[], nn.Module]:
    """A builder of the same model with the weights at ``source``, read again at every build.

    how: arguments of ``load_pretrained``.
    Guarantee: a classifier that stays fresh is that of ``builder``, so it depends on the seed
    alone.
    """
    return partial(_build, builder, source, how)


def _build(builder: Callable[[], nn.Module], source: str, how: Mapping[str, Any]) -> nn.Module:
    model = builder()
    load_pretrained(model, source, **how)
    return model


def load_pretrained(
    model: nn.Module,
    source: str,
    *,
    sha256: str | None = None,
    classifier: str | None = CLASSIFIER,
    say: Say = _silent,
) -> tuple[str, ...]:
    """Fill the model in place from ``source``. Returns the names of parameters that stay fresh.

    source: a local .pt, .pth, .bin (a state dict, by itself or under "state_dict") or .safetensors
        file, a folder that fedlsg wrote, or a hub repository as "owner/name" or "owner/name:file".
        A local file wins.
    sha256: digest that the file must have; None for any.
    classifier: path of the head; None: the last Linear.
    say: reports a classifier that stays fresh.
    Guarantee: every parameter outside of the classifier is loaded, or nothing is. The classifier
    stays fresh if the file has none, or one for another number of classes.
    Raises:
        ValueError: missing or unexpected names, other shapes, values that are not finite, a file
            that cannot be read as plain tensors or has another digest.
        FileNotFoundError: no such file here, or no such repository or file on the hub.
        ConnectionError: the hub cannot be reached.
        ModuleNotFoundError: a library of the ``hub`` extra is missing.
    """
    file = find_weights(source)
    if sha256 is not None and file_digest(file) != sha256:
        raise ValueError(
            f"{source} has changed, or is another file here: expected one with {sha256=}; restore "
            "it"
        )
    weights = read_weights(file)
    state = model.state_dict()
    path = classifier if classifier == CLASSIFIER else find_classifier(model, classifier)
    head = {name for name in state if name.startswith(f"{path}.")}
    given_head = {name for name in weights if name.startswith(f"{path}.")}
    fits = head == given_head and all(weights[name].shape == state[name].shape for name in head)
    fresh = () if fits else tuple(name for name in state if name in head)
    unused = set() if fits else given_head
    _check_same_inputs(state, weights, f"{path}.weight", source)
    wanted = {name: state[name] for name in state if name not in fresh}
    given = {name: tensor for name, tensor in weights.items() if name not in unused}
    check_fit(wanted, given, source)
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(weights[name])
    if fresh:
        why = "was trained for another set of classes" if given_head else "is not in the file"
        say(
            f"{source}: the classifier {why}; {', '.join(fresh)} start fresh, everything else is "
            "loaded"
        )
    return fresh


def _check_same_inputs(
    own: Mapping[str, Tensor], given: Mapping[str, Tensor], name: str, source: str
) -> None:
    """Refuse a classifier with other input features: the rest is then another network, too."""
    if name in own and name in given and own[name].shape[1:] != given[name].shape[1:]:
        raise ValueError(
            f"{source} does not fit the model: expected {name} to read "
            f"{tuple(own[name].shape[1:])} features, got {tuple(given[name].shape[1:])}; choose "
            "the --model it was trained as"
        )


def check_fit(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError unless the names and shapes agree and all values are finite."""
    problems = {
        "missing": [name for name in wanted if name not in given],
        "unexpected": [name for name in given if name not in wanted],
        "of another shape": [
            f"{name} {tuple(given[name].shape)} instead of {tuple(t.shape)}"
            for name, t in wanted.items()
            if name in given and given[name].shape != t.shape
        ],
        "not finite": [
            name for name, t in given.items() if name in wanted and not torch.isfinite(t).all()
        ],
    }
    misfits = [f"{kind}: {_shorten(names)}" for kind, names in problems.items() if names]
    if misfits:
        raise ValueError(
            f"{source} does not fit the model ({'; '.join(misfits)}); choose the --model it was "
            "trained as"
        )


def _shorten(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU, without the prefix of DataParallel.

    Raises ValueError for a file that holds anything but tensors.
    """
    advice = (
        "expected a state dict saved by torch.save(model.state_dict(), file), or a .safetensors "
        "file"
    )
    loaded: Any
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded = load_file(file)
        else:
            bounded.check_stored(file)
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    # zip, pickle and safetensors each raise their own on damaged or hostile files
    except Exception as error:
        reason = reason_of(error)
        if isinstance(error, UnpicklingError):  # torch's text advises to run the file's code
            reason = "no file of tensors alone"
        raise ValueError(f"cannot read {file} ({reason}); {advice}") from error
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise ValueError(f"{file} holds something else than tensors by name; {advice}")
    return {str(name).removeprefix("module."): tensor for name, tensor in loaded.items()}


def find_weights(source: str) -> Path:
    """The local file of ``source``; that of a hub repository is downloaded.

    Raises the errors of ``load_pretrained`` about missing files and the hub.
    """
    file = Path(source).expanduser()
    if file.is_file():
        return file
    if (file / FOLDER_FILE).is_file():
        return file / FOLDER_FILE
    if file.is_dir():
        raise FileNotFoundError(
            f"{source} is a folder without {FOLDER_FILE}; name the file in it that holds the "
            "weights"
        )
    return find_on_hub(source)


def find_on_hub(source: str) -> Path:
    """The local copy of a file of a hub repository; no other file of this machine is looked for.

    Raises as ``find_weights``.
    """
    match = _HUB_SOURCE.fullmatch(source)
    if (
        match is None
        or source.startswith(HERE)
        or (match["file"] is None and source.endswith(SUFFIXES))
    ):
        raise FileNotFoundError(
            f"no file {source}; expected a local {', '.join(SUFFIXES)} file, "
            'or a hub repository as "owner/name" or "owner/name:file"'
        )
    names = (match["file"],) if match["file"] else HUB_FILES
    return _find_on_hub(match["repository"], names)


def _find_on_hub(repository: str, names: tuple[str, ...]) -> Path:
    """The first of the files in this machine's copy of the repository, else on the hub."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import (
            EntryNotFoundError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{repository} is no local file: install the hub extra to download it (pip install "
            "'fedlsg[hub]')"
        ) from error
    for offline in (True, False):
        for name in names:
            try:
                return Path(hf_hub_download(repository, name, local_files_only=offline))
            except RepositoryNotFoundError as error:
                raise FileNotFoundError(
                    f"the Hugging Face hub has no public repository {repository}; check the name"
                ) from error
            except (EntryNotFoundError, LocalEntryNotFoundError) as error:
                if not offline and isinstance(error, LocalEntryNotFoundError):
                    raise _unreachable(repository, names, error) from error
            # the hub's client raises its own, requests' and httpx's errors
            except Exception as error:
                raise _unreachable(repository, names, error) from error
    raise FileNotFoundError(
        f"{repository} on the Hugging Face hub has no {' or '.join(names)}; name a file as "
        f'"{repository}:file"'
    )


def _unreachable(repository: str, names: tuple[str, ...], error: Exception) -> ConnectionError:
    """The error about a hub that cannot be reached."""
    return ConnectionError(
        f"cannot download {repository} from the Hugging Face hub ({reason_of(error)}); check the "
        f"connection, or download {' or '.join(names)} elsewhere and give --pretrained the path of "
        "the file"
    )
