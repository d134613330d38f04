"""model.safetensors and config.json: the model that a run trained, for programs that know no fedlsg.

from safetensors.torch import load_file
model.load_state_dict(load_file("runs/.../model.safetensors"))
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.files.sealed import DamagedError, seal, unseal

WEIGHTS, FACTS = "model.safetensors", "config.json"
DIGEST = "model_sha256"


def write_model(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, about: str = FACTS) -> None:
    """Write tensors by name, then the facts and the digest of the tensors' file, each atomically and durably.

    Tied parameters are written under each of their names. ``about``: name of the file of facts.
    """
    from safetensors.torch import save

    content = save(_apart(tensors), metadata={"format": "pt"})
    write_atomically(folder / WEIGHTS, content)
    write_atomically(folder / about, seal({**facts, DIGEST: hashlib.sha256(content).hexdigest()}, indent=2))


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``write_model`` wrote: tensors on the CPU, and facts. Raises FileNotFoundError; DamagedError."""
    from safetensors.torch import load

    otherwise = "restore it from a copy"
    facts = unseal(folder / FACTS, otherwise=otherwise)
    content = (folder / WEIGHTS).read_bytes()
    if hashlib.sha256(content).hexdigest() != facts.pop(DIGEST, None):
        raise DamagedError(f"{folder / WEIGHTS} is damaged: {otherwise}")
    return load(content), facts


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, each whole and in memory of its own, as the format wants it."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        memory = own.untyped_storage()
        shared = memory.data_ptr() in seen or memory.nbytes() != own.nbytes
        found[name] = own.clone() if shared else own
        seen.add(memory.data_ptr())
    return found
