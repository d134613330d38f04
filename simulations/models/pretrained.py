"""Pre-trained weights from a local file or the Hugging Face hub.

They become the public initial weights of a run, so they must come from public data: the epsilon of a run does not
cover the data that they were trained on. Files are read as plain tensors; nothing in them is executed.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

CLASSIFIER = "classifier"
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
"""Files searched for in a hub repository, in this order, if the source names none."""
_HUB_SOURCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(:(?P<file>.+))?")
_SHOWN = 8

Say = Callable[[str], None]


def _silent(line: str) -> None:
    """Says nothing."""


def with_pretrained(builder: Callable[[], nn.Module], source: str, *, say: Say = _silent) -> Callable[[], nn.Module]:
    """A builder of the same model with the weights at ``source``, read again at every build; see ``load_pretrained``.

    Guarantee: a classifier that stays fresh is that of ``builder``, so it depends on the seed alone.
    """
    return partial(_build, builder, source, say)


def _build(builder: Callable[[], nn.Module], source: str, say: Say) -> nn.Module:
    model = builder()
    load_pretrained(model, source, say=say)
    return model


def load_pretrained(model: nn.Module, source: str, *, say: Say = _silent) -> tuple[str, ...]:
    """Fill the model in place from ``source``; the names of the parameters that stay fresh.

    source: a local .pt, .pth, .bin (a state dict, by itself or under "state_dict") or .safetensors file, or a hub
        repository as "owner/name" or "owner/name:file". A local file wins.
    Guarantee: every parameter outside ``classifier`` is loaded, or nothing is. The classifier stays fresh if the
    file has none, or one for another number of classes; ``say`` reports it.
    Raises:
        ValueError: missing or unexpected names, other shapes, values that are not finite, or a file that cannot be
            read as plain tensors.
        FileNotFoundError: no such file here, or no such repository or file on the hub.
        ConnectionError: the hub cannot be reached.
        ModuleNotFoundError: a library of the ``hub`` extra is missing.
    """
    file = find_weights(source)
    weights = read_weights(file)
    own = model.state_dict()
    head = {name for name in own if name.startswith(f"{CLASSIFIER}.")}
    given_head = {name for name in weights if name.startswith(f"{CLASSIFIER}.")}
    fits = head == given_head and all(weights[name].shape == own[name].shape for name in head)
    fresh = () if fits else tuple(name for name in own if name in head)
    _check_same_inputs(own, weights, source)
    wanted = {name: own[name] for name in own if name not in fresh}
    _check(wanted, {name: t for name, t in weights.items() if fits or name not in given_head}, source)
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(weights[name])
    if fresh:
        why = "was trained for another set of classes" if given_head else "is not in the file"
        say(f"{source}: the classifier {why}; {', '.join(fresh)} start fresh, everything else is loaded")
    return fresh


def _check_same_inputs(own: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Refuse a classifier with other input features: the rest is then another network, too."""
    name = f"{CLASSIFIER}.weight"
    if name in own and name in given and own[name].shape[1:] != given[name].shape[1:]:
        raise ValueError(
            f"{source} does not fit the model: expected {name} to read {tuple(own[name].shape[1:])} features, "
            f"got {tuple(given[name].shape[1:])}; choose the --model it was trained as"
        )


def _check(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError unless the names and shapes agree and all values are finite."""
    problems = {
        "missing": [name for name in wanted if name not in given],
        "unexpected": [name for name in given if name not in wanted],
        "of another shape": [
            f"{name} {tuple(given[name].shape)} instead of {tuple(t.shape)}"
            for name, t in wanted.items()
            if name in given and given[name].shape != t.shape
        ],
        "not finite": [name for name, t in given.items() if name in wanted and not torch.isfinite(t).all()],
    }
    found = [f"{kind}: {_shorten(names)}" for kind, names in problems.items() if names]
    if found:
        raise ValueError(f"{source} does not fit the model ({'; '.join(found)}); choose the --model it was trained as")


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU, without the prefix that DataParallel puts before every name.

    Raises ValueError for a file that holds anything but tensors.
    """
    advice = "expected a state dict saved by torch.save(model.state_dict(), file), or a .safetensors file"
    loaded: Any
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded = load_file(file)
        else:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and safetensors each raise their own on damaged or hostile files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, UnpicklingError):  # torch's text advises to run the file's code
            reason = "no file of tensors alone"
        raise ValueError(f"cannot read {file} ({reason}); {advice}") from error
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise ValueError(f"{file} holds something else than tensors by name; {advice}")
    return {str(name).removeprefix("module."): tensor for name, tensor in loaded.items()}


def find_weights(source: str) -> Path:
    """The local file of ``source``, downloaded from the hub where it is a repository; errors as ``load_pretrained``."""
    file = Path(source).expanduser()
    if file.is_file():
        return file
    if file.is_dir():
        raise FileNotFoundError(f"{source} is a folder; name the file in it that holds the weights")
    match = _HUB_SOURCE.fullmatch(source)
    if match is None or (match["file"] is None and source.endswith(SUFFIXES)):
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
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{repository} is no local file: install the hub extra to download it (pip install 'fedlsg[hub]')"
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
            except Exception as error:  # the hub's client raises its own, requests' and httpx's errors
                raise _unreachable(repository, names, error) from error
    raise FileNotFoundError(
        f'{repository} on the Hugging Face hub has no {" or ".join(names)}; name a file as "{repository}:file"'
    )


def _unreachable(repository: str, names: tuple[str, ...], error: Exception) -> ConnectionError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ConnectionError(
        f"cannot download {repository} from the Hugging Face hub ({reason}); check the connection, or download "
        f"{' or '.join(names)} elsewhere and give --pretrained the path of the file"
    )
