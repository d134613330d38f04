"""The commands that write what a run left for programs without fedlsg: ``fedlsg export``, ``payload``."""

from typing import Annotated

import typer

from simulations.cli.options import OwnMethod, OwnWorkload, TrustCode, console, let_run, only_code, option
from simulations.settings.settings import merge


def export(
    what: Annotated[
        list[str],
        typer.Argument(metavar="[figures] RUN", help="Directory of a finished run; with figures also of a comparison."),
    ],
    out: Annotated[str | None, option(help="New folder; default export/ in the run, or figures-RUN here.")] = None,
    merge_lora: Annotated[bool, option("--merge-lora", help="Write W_0 + s B A, and no factors of LoRA.")] = False,
    workload: OwnWorkload = None,
    method: OwnMethod = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the trained model as a folder that plain torch, or transformers, loads without fedlsg.

    With figures: the curves as PDF, SVG and PNG instead, as wide as a column of a paper with two. For the model, code
    of the run's own is needed only for a run of an older version, which left no model.safetensors.
    """
    *rest, directory = what
    if rest == ["figures"]:
        from simulations.exports import figures_command

        figures_command(directory, out, console)
        return
    if rest:
        raise ValueError(f"expected RUN, or figures and RUN, got {' '.join(what)}")
    from simulations.exports import export_command

    named = only_code(merge({"workload": workload, "method": method}, None))
    export_command(directory, out, merge_lora, console, lambda: let_run([directory], named, trust_code))


def payload(
    directory: Annotated[str, typer.Argument(metavar="RUN", help="Run that recorded its updates.")],
    round: Annotated[int, option(help="Round, from 1.")],
    client: Annotated[int, option(help="Client, from 0.")],
    out: Annotated[str, option(help="New file, .npz.")],
    workload: OwnWorkload = None,
    method: OwnMethod = None,
    trust_code: TrustCode = False,
) -> None:
    """Write one recorded payload (fedlsg run --record-updates) as arrays that numpy reads.

    indices and values: what was sent, in the flat vector of the round's frame.json. dW/NAME: the gradient of each
    parameter that the payload implies (Eq. 3). All are sums over the client's batch; divided by the array divisor,
    the client's expected batch size q N, they are its mean gradient (times K with K local steps). Code of the run's
    own is needed only for a run of an older version, which left no frame.json.
    """
    from simulations.exports.payload import payload_command

    named = only_code(merge({"workload": workload, "method": method}, None))
    payload_command(directory, round, client, out, console, lambda: let_run([directory], named, trust_code))
