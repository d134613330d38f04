"""Files of payloads and weights: updates/ and model.safetensors for other programs, and downlink/.

updates/ is recorded with ``record_updates``, so that a payload can be read without the model:
    round-000001/client-000000.bin    a payload as it was sent
    round-000001/sum.npy              under trust=secure: the sum of the clients' values; payloads
                                      are masked
    round-000001/frame.json           its coordinates: parameters and blocks, in the order of the
                                      flat vector
    round-000001/frame.npz            kept: a bit a coordinate; L/NAME, R/NAME: carriers of a
                                      parameter
    round-000001/weights.npy          public weights at the start of the round, flat
    round-000001/kept.npy             kept positions, if the server chose them

docs/outputs.md describes the fields and reads them with numpy alone. A parameter's ``form`` says
how its blocks, each with its ``part``, give its gradient: ``dense`` the block itself; ``tangent``
Eq. 3 of L and R; ``core`` L S R; ``preconditioned`` S itself; ``factors`` L times R.

model.safetensors and config.json have the model that the run trained:
    from safetensors.torch import load_file
    model.load_state_dict(load_file("runs/.../model.safetensors"))

downlink/ has the steps of a sparse downlink and the carriers of probes, one file each
(``StepFiles``). The server writes and reads them. The simulated clients of one process read a step
there if it was sent to another of them, or the run was resumed; a Ray worker gets it from the
driver. This only avoids copies in memory: each client's message has the step, and its bytes are
counted in full.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, Keep
from fedlsg.frame.forms import FORMS, TANGENT
from fedlsg.owner_only import make_parents
from fedlsg.simulations.storage.atomic_files import (
    DamagedError,
    Record,
    load_arrays,
    load_bytes,
    save_arrays,
    save_bytes,
    seal,
    unseal,
    write_atomically,
)
from fedlsg.state import Phase, phase_of

MAX_REPLAYED_STEPS = 50
"""A shared replica with more missing steps than this reads the run's checkpoint: replaying takes
longer.
"""


@dataclass(frozen=True)
class StepFiles:
    """The folder downlink/: one file for each step, and one for the carriers of each probe.

    A step is named by the model version that it leads to, carriers by their round. A file is a
    SHA-256, then the content.
    """

    folder: Path

    def path(self, version: int) -> Path:
        """The file of a step."""
        return self.folder / f"step-{version:06d}.bin"

    def save(self, version: int, step: bytes) -> None:
        """Keep a step. Not synced: if a crash loses a step, the whole model replaces it."""
        save_bytes(self.path(version), step)

    def load(self, version: int) -> bytes:
        """A step that was kept. Raises OSError if it is missing, DamagedError if it is damaged."""
        return load_bytes(self.path(version))

    @property
    def newest_basis(self) -> int:
        """The round of the carriers that were probed last; 0 without any."""
        return max(
            (int(path.stem.rpartition("-")[2]) for path in self.folder.glob("basis-*.bin")),
            default=0,
        )

    def save_basis(self, round: int, basis: bytes) -> None:
        """Keep the carriers that were probed in a round, and delete later ones. Not synced."""
        path = self.folder / f"basis-{round:06d}.bin"
        save_bytes(path, basis)
        for later in self.folder.glob("basis-*.bin"):
            if later > path:  # of a process whose rounds were lost
                later.unlink()

    def load_basis(self, round: int) -> bytes:
        """The carriers of a round. Raises as ``load``."""
        return load_bytes(self.folder / f"basis-{round:06d}.bin")

    def after(self, version: int) -> range:
        """Versions of the stored steps after ``version``, without a gap."""
        newest = version
        while self.path(newest + 1).exists():
            newest += 1
        return range(version + 1, newest + 1)

    def cut(self, version: int) -> None:
        """Delete the steps after ``version``."""
        for path in self.folder.glob("step-*.bin"):
            if path > self.path(version):
                path.unlink()


FORMAT = 1
"""Format of frame.json."""
ROUND = re.compile(r"round-(\d{6})")
CLIENT = re.compile(r"client-(\d{6})\.bin")
OTHERWISE = "record the run again with --record-updates"
"""The advice for damaged files."""


def round_folder(run: Path, round: int) -> Path:
    """The folder of a round's records."""
    return run / "updates" / f"round-{round:06d}"


def sum_file(run: Path, round: int) -> Path:
    """The file with the sum that the server saw in a round."""
    return round_folder(run, round) / "sum.npy"


def payload_files(run: Path) -> dict[int, dict[int, Path]]:
    """Payloads by training round and client.

    The pruning round is left out: its values are saliencies.
    """
    by_round: dict[int, dict[int, Path]] = {}
    for path in sorted((run / "updates").glob("round-*/client-*.bin")):
        round, client = ROUND.fullmatch(path.parent.name), CLIENT.fullmatch(path.name)
        if round and client and phase_of(int(round.group(1))) is Phase.TRAINING:
            by_round.setdefault(int(round.group(1)), {})[int(client.group(1))] = path
    return by_round


def save_whole(folder: Path, round: int, name: str, **arrays: Tensor | float) -> None:
    """Write a round's values of a Flower app that trains by itself, for ``fedlsg attack``.

    The file is for its owner only.

    name: ``client-000003`` or ``sum``.
    arrays: of a client ``update``, clipped and without noise, and ``payload`` as it was read.
    """
    round_path = folder / f"round-{round:06d}"
    make_parents(round_path, private=True)
    saved = {key: torch.as_tensor(value).double().cpu().numpy() for key, value in arrays.items()}
    save_arrays(round_path / f"{name}.npz", saved, private=True)


def write_frame(folder: Path, frame: Frame, facts: Mapping[str, Any]) -> None:
    """Write frame.npz and frame.json; ``facts``: entries of frame.json about the round."""
    wire = frame.wire
    kept = np.zeros(wire.size, dtype=bool)
    kept[wire.indices.numpy()] = True
    arrays = {"kept": np.packbits(kept)}
    for c in wire.coordinates:
        if c.L is not None and c.R is not None:
            arrays |= {
                f"L/{c.name}": c.L.detach().cpu().numpy(),
                f"R/{c.name}": c.R.detach().cpu().numpy(),
            }
    save_arrays(folder / "frame.npz", arrays)
    about = {
        "format": FORMAT,
        **facts,
        "digest": frame.digest.hex(),
        "size": wire.size,
        **({} if wire.part_norm is None else {"part_norm": wire.part_norm}),
        "kept": wire.kept,
        "parameters": _parameters(frame),
        "blocks": _blocks(wire.blocks),
    }
    write_atomically(folder / "frame.json", seal(about, indent=1))


def read_frame(folder: Path) -> tuple[Frame, Record]:
    """The frame of a recorded round, bit for bit and on the CPU, and everything of frame.json.

    Raises FileNotFoundError; DamagedError; ValueError for another format.
    """
    about = unseal(folder / "frame.json", otherwise=OTHERWISE)
    forms = {p["form"] for p in about["parameters"]}
    if about["format"] != FORMAT or not forms <= {"dense", "factors", *FORMS}:
        raise ValueError(
            f"{folder / 'frame.json'} has format {about['format']}, forms {sorted(forms)}: read it "
            "with the version of fedlsg that wrote it"
        )
    names = {"kept", *(f"{side}/{p['name']}" for p in about["parameters"] for side in "LR")}
    try:
        arrays = load_arrays(folder / "frame.npz", names)
        _check_sizes(about, arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{folder / 'frame.npz'}: {error}; {OTHERWISE}") from None
    frame = _frame(about, arrays)
    if frame.digest.hex() != about["digest"]:
        raise DamagedError(
            f"{folder}: frame.npz and frame.json are of different frames; {OTHERWISE}"
        )
    return frame, about


def _parameters(frame: Frame) -> list[Record]:
    """Name, shape, form and weight in the clip of every trainable parameter, in model order.

    All blocks of a parameter have its weight, but a "rest" (``_blocks``). Of a frame with
    ``sent`` they are the dense blocks; the blocks on the wire, factors, have weight 1 (``_frame``).
    """
    weights = {block.parameter: block.weight for block in frame.blocks if block.part != "rest"}
    forms = {
        c.name: c.form.name if frame.sent is None else "factors"
        for c in frame.wire.coordinates
        if c.carried
    }
    return [
        {
            "name": c.name,
            "shape": c.shape,
            "form": forms.get(c.name, "dense"),
            "weight": weights[c.name],
        }
        for c in frame.wire.coordinates
    ]


def _blocks(blocks: Sequence[Block]) -> list[Record]:
    """Parameter, part, shape and place of every block, in the order of the flat vector."""
    offsets = itertools.accumulate((block.size for block in blocks), initial=0)  # and the end
    return [
        {
            "parameter": b.parameter,
            "part": b.part,
            "shape": b.shape,
            "offset": offset,
            "size": b.size,
            "kept": b.kept,
        }
        | ({"weight": b.weight} if b.part == "rest" else {})
        for b, offset in zip(blocks, offsets, strict=False)
    ]


def _frame(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Frame:
    """The frame that frame.json describes (``about``), with the arrays of frame.npz."""
    kept = torch.from_numpy(np.unpackbits(arrays["kept"], count=about["size"]).astype(bool))
    parameters = {p["name"]: p for p in about["parameters"]}
    factors = any(p["form"] == "factors" for p in parameters.values())
    coordinates = tuple(
        Coordinates(
            name=name,
            shape=tuple(p["shape"]),
            L=_carrier(arrays, "L", name),
            R=_carrier(arrays, "R", name),
            form=FORMS.get(p["form"], TANGENT),
        )
        for name, p in parameters.items()
    )
    blocks = tuple(
        Block(
            parameter=b["parameter"],
            part=b["part"],
            shape=tuple(b["shape"]),
            keep=_keep(kept[b["offset"] : b["offset"] + b["size"]]),
            weight=1.0 if factors else b.get("weight", parameters[b["parameter"]]["weight"]),
        )
        for b in about["blocks"]
    )
    wire = Frame(coordinates=coordinates, blocks=blocks, part_norm=about.get("part_norm"))
    if not factors:
        return wire
    dense = tuple(Coordinates(name=c.name, shape=c.shape) for c in coordinates)
    whole = tuple(
        Block(parameter=c.name, part="dense", shape=c.shape, weight=parameters[c.name]["weight"])
        for c in dense
    )
    return Frame(coordinates=dense, blocks=whole, sent=wire)


def _check_sizes(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError if frame.json describes other coordinates than frame.npz has.

    So a file cannot make the reader allocate more than its own size.
    """
    kept, size = arrays["kept"], about["size"]
    block_sizes = [math.prod(b["shape"]) for b in about["blocks"]]
    if block_sizes != [b["size"] for b in about["blocks"]] or sum(block_sizes) != size:
        raise ValueError("its blocks do not have the sizes that frame.json says")
    if kept.dtype != np.uint8 or kept.shape != (math.ceil(size / 8),):
        raise ValueError(f"expected a bit for each of {size} coordinates, got {kept.shape} bytes")


def _carrier(arrays: Mapping[str, np.ndarray], side: str, name: str) -> Tensor | None:
    carrier = arrays.get(f"{side}/{name}")
    return None if carrier is None else torch.from_numpy(carrier)


def _keep(kept: Tensor) -> Keep:
    return EVERYTHING if bool(kept.all()) else Keep(axis=None, index=kept.nonzero().squeeze(1))


WEIGHTS, FACTS = "model.safetensors", "config.json"
"""The files of a model, and of the facts about it."""
DIGEST = "model_sha256"
"""Entry of config.json: the SHA-256 of model.safetensors."""


def write_model(
    folder: Path,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    *,
    facts_file: str = FACTS,
) -> None:
    """Write model.safetensors, then the facts with its digest; each atomically and durably.

    Tied parameters are written under each of their names. ``facts_file``: its name.
    """
    from safetensors.torch import save

    content = save(_apart(tensors), metadata={"format": "pt"})
    write_atomically(folder / WEIGHTS, content)
    write_atomically(
        folder / facts_file, seal({**facts, DIGEST: hashlib.sha256(content).hexdigest()}, indent=2)
    )


def read_model(folder: Path) -> tuple[dict[str, Tensor], Record]:
    """What ``write_model`` wrote with the default ``facts_file``: tensors on the CPU, and facts.

    Raises FileNotFoundError; DamagedError.
    """
    from safetensors.torch import load

    otherwise = "restore it from a copy"
    facts = unseal(folder / FACTS, otherwise=otherwise)
    content = (folder / WEIGHTS).read_bytes()
    if hashlib.sha256(content).hexdigest() != facts.pop(DIGEST, None):
        raise DamagedError(f"{folder / WEIGHTS} is damaged: {otherwise}")
    return load(content), facts


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, contiguous, none a view or shared: safetensors refuses others."""
    seen: set[int] = set()
    tensors_apart = {}
    for name, tensor in tensors.items():
        copied = tensor.detach().cpu().contiguous()
        memory = copied.untyped_storage()
        shared = memory.data_ptr() in seen or memory.nbytes() != copied.nbytes
        tensors_apart[name] = copied.clone() if shared else copied
        seen.add(memory.data_ptr())
    return tensors_apart
