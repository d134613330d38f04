"""``fedlsg payload``: one recorded payload as arrays: values, positions, implied gradients.

Scale: values are a client's sum over its Poisson batch of clipped per-example gradients, plus its
noise, after the codec; with K local steps, the sum over the steps. ``dW/NAME`` is the gradient of a
parameter on the same scale. Divided by ``divisor``, the client's expected batch size q_k N_k, it
estimates the client's mean clipped gradient (times K). The server instead adds the clients and
divides by clients a round times expected batch (``divisor`` of frame.json).
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from fedlsg.carriers.powersgd import decode
from fedlsg.frame import Frame
from fedlsg.owner_only import is_closed
from fedlsg.payload import Dither, Expected, PayloadError, chosen_positions, unpack
from fedlsg.simulations.report.terminals.terminal import checked, print_whole
from fedlsg.simulations.settings.resolve import uplink_codec
from fedlsg.simulations.storage.atomic_files import check_writable, write_atomically, writing_to
from fedlsg.simulations.storage.examined import LISTS, SETTINGS
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import payload_files, read_frame


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """The context that is needed to read one payload.

    frame: of its round.
    expected: by the server.
    expected_batch: q_k N_k of the client.
    """

    frame: Frame
    expected: Expected
    expected_batch: float


def payload_command(directory: str, round: int, client: int, out: str, console: Console) -> None:
    """Write the arrays of one payload as npz.

    Raises ValueError for a run without recorded updates, a round or client that is not there (it
    lists those that are), an existing file, and a damaged payload.
    """
    file = Path(out).expanduser().resolve()
    if file.exists():
        raise ValueError(f"{out} exists: nothing is overwritten, choose another --out")
    here = f"updates/round-{round:06d}/"
    run = checked(
        directory, (SETTINGS, *LISTS, f"{here}frame.*", f"{here}client-{client:06d}.bin"), console
    )
    path = find(run, round, client)
    check_writable(file.parent)
    arrays = read_payload(run, round, client, path)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    with writing_to(file.parent):
        write_atomically(file, buffer.getvalue(), private=is_closed(path.parent))
    names = [name.removeprefix("dW/") for name in arrays if name.startswith("dW/")]
    print_whole(
        f"{file}: {len(arrays['values'])} values of client {client} in round {round}, dW of "
        f"{len(names)} parameters",
        console,
    )
    print_whole(
        f"They are summed gradients; divided by {float(arrays['divisor']):g}, the client's "
        "expected batch size, they are its mean gradient.",
        console,
    )


def find(run: RunDir, round: int, client: int) -> Path:
    """The file of a payload. Raises ValueError, listing rounds or clients, if there is none."""
    if run.read_config().trust == "server":
        raise ValueError(
            f"{run.path} has trust=server: updates without noise are kept nowhere; sum.npy is the "
            "release"
        )
    if run.read_config().trust == "secure":
        raise ValueError(
            f"{run.path} has trust=secure: payloads are masked; sum.npy of a round is what they "
            "add up to"
        )
    files = payload_files(run.path)
    if not files:
        raise ValueError(
            f"{run.path} holds no recorded updates: run it again with --record-updates"
        )
    if round not in files:
        raise ValueError(
            f"no payload of round {round} is recorded; there are rounds {spans(files)}"
        )
    if client not in files[round]:
        raise ValueError(
            f"no payload of client {client} is recorded in round {round}; there are clients "
            f"{spans(files[round])}"
        )
    return files[round][client]


def read_payload(run: RunDir, round: int, client: int, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a payload by name.

    indices: (k,) int64, positions in the flat vector of frame.json.
    values: (k,) float32, at these positions.
    divisor: (), q_k N_k.
    dW/NAME: the gradient of a parameter in its shape, by Eq. 3 or another form of the parameter.

    Raises ValueError for a damaged record.
    """
    context = read_context(run, round, client, path)
    message, expected, frame = path.read_bytes(), context.expected, context.frame
    try:
        values = unpack(message, expected)
    except PayloadError as error:
        raise ValueError(f"{path}: {error}; the record is damaged") from None
    device = next((carrier.device for carrier in frame.wire.carriers), values.device)
    gradients = frame.gradients(decode(values.to(device), frame))
    indices = expected.indices
    if expected.index_mode == "chosen":
        indices = chosen_positions(
            message, [block.shape for block in frame.wire.blocks], expected.limit
        )
        values = values[indices]
    arrays = {
        "indices": indices.numpy(),
        "values": values.numpy(),
        "divisor": np.array(context.expected_batch),
    }
    return arrays | {f"dW/{name}": gradient.cpu().numpy() for name, gradient in gradients.items()}


def read_context(run: RunDir, round: int, client: int, path: Path) -> Context:
    """The context of a payload, from the files of its round.

    Raises ValueError for a missing file or an attempt that was not counted, DamagedError for a
    damaged file.
    """
    try:
        frame, about = read_frame(path.parent)
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename} is missing: restore it from a copy") from None
    settings, of_client = run.read_config(), about["clients"].get(str(client))
    if of_client is None:
        raise ValueError(
            f"{path} is of an attempt that the server did not count: {path.parent / 'frame.json'} "
            f"does not list client {client}"
        )
    expected = Expected(
        round=round,
        codec=uplink_codec(settings),
        index_mode=about["indices"],
        size=frame.wire.size,
        indices=frame.wire.indices,
        digest=frame.digest,
        blocks=frame.wire.blocks,
        dither=Dither(seed=settings.seed, client=client, noise_std=of_client["noise_std"]),
        most=about["most"],
    )
    return Context(frame=frame, expected=expected, expected_batch=of_client["expected_batch"])


def spans(numbers: Mapping[int, object]) -> str:
    """Numbers as text, consecutive ones as a span: "1-4, 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
