"""The commands that make public initial weights: ``fedlsg pretrain``, ``fedlsg convert``."""

from typing import Annotated

import typer

from simulations.cli.options import console, option, setting, starting
from simulations.settings.settings import permit_code


def pretrain(
    workload: Annotated[
        str, typer.Argument(help="Whose models and image size; as in run, default cifar10.", show_default=False)
    ] = "cifar10",
    model: Annotated[str | None, setting("model")] = None,
    source: Annotated[
        str, option(help="leaves (default), pink, data:NAME|PATH (public), or a function FILE.py:NAME.")
    ] = "leaves",
    task: Annotated[str, option(help="contrastive (default) or instance.")] = "contrastive",
    images: Annotated[int, option(help="Images, drawn once; default 10000.")] = 10_000,
    steps: Annotated[int, option(help="Steps of training; default 1000.")] = 1000,
    batch: Annotated[int, option(help="Images of a step, two views of each; default 256.")] = 256,
    learning_rate: Annotated[float, option(help="Of Adam, falling to 0; default 0.001.")] = 1e-3,
    seed: Annotated[int, setting("seed")] = 0,
    threads: Annotated[int, option(help="Threads of torch; default 1.")] = 1,
    device: Annotated[str, setting("device")] = "auto",
    data_dir: Annotated[str | None, setting("data_dir")] = None,
    out: Annotated[str | None, option(help="New folder; default pretrained/WORKLOAD-MODEL.")] = None,
) -> None:
    """Train a model on synthetic images alone, and write weights that any run starts from at no privacy cost."""
    permit_code({"workload": workload, "source": source})
    with starting():
        from simulations.pretrain.command import pretrain_command
        from simulations.pretrain.train import Schedule
        from simulations.settings.settings import RUN

    pretrain_command(
        workload, console, model=model, source=source, task=task, images=images, seed=seed, threads=threads,
        schedule=Schedule(steps=steps, batch=batch, learning_rate=learning_rate), device=RUN["device"].parse(device),
        data_dir=data_dir, out=out,
    )  # fmt: skip


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
