"""``fedlsg convert``: weights that others trained."""

from typing import Annotated

import typer

from simulations.cli.options import console, option, starting


def convert(
    source: Annotated[
        str, typer.Argument(help="File (.dill, .pkl, .npz, .pt, .safetensors) or folder of Orbax.", show_default=False)
    ],
    part: Annotated[str, option(help="Key of the weights in a checkpoint of De et al.; default params.")] = "params",
    trained_on: Annotated[
        str | None, option(help="Workload that the weights have seen: a run on it refuses them.")
    ] = None,
    out: Annotated[str | None, option(help="New folder; default pretrained/NAME.")] = None,
) -> None:
    """Turn weights that others trained (De et al.'s wide ResNets, ResNets of timm) into a folder to start from.

    Nothing in the file is executed. The weights must be public: the epsilon of a run does not cover their data.
    """
    with starting():
        from simulations.convert.command import convert_command

    convert_command(source, console, part=part, trained_on=trained_on, out=out)
