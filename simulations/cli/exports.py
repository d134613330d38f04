"""The commands that write what a run left for programs without fedlsg: ``fedlsg export``."""

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
