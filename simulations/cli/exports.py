"""The commands that write what a run left for programs without fedlsg: ``fedlsg export``, ``payload``."""

from typing import Annotated

import typer

from simulations.cli.options import console, option


def export(
    directory: Annotated[str, typer.Argument(metavar="RUN", help="Directory of a finished run.")],
    out: Annotated[str | None, option(help="New folder; default export/ in the run.")] = None,
    merge_lora: Annotated[bool, option("--merge-lora", help="Write W_0 + s B A, and no factors of LoRA.")] = False,
) -> None:
    """Write the trained model as a folder that plain torch, or transformers, loads without fedlsg."""
    from simulations.exports.model import export_command

    export_command(directory, out, merge_lora, console)


def payload(
    directory: Annotated[str, typer.Argument(metavar="RUN", help="Run that recorded its updates.")],
    round: Annotated[int, option(help="Round, from 1.")],
    client: Annotated[int, option(help="Client, from 0.")],
    out: Annotated[str, option(help="New file, .npz.")],
) -> None:
    """Write one recorded payload (fedlsg run --record-updates) as arrays that numpy reads.

    indices and values: what was sent, in the flat vector of the round's frame.json. dW/NAME: the gradient of each
    parameter that the payload implies (Eq. 3). All are sums over the client's batch; divided by the array divisor,
    the client's expected batch size q N, they are its mean gradient (times K with K local steps).
    """
    from simulations.exports.payload import payload_command

    payload_command(directory, round, client, out, console)
