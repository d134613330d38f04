"""The commands on files of a run: ``inspect``, ``audit``, ``attack``, ``export``, ``payload``."""

from typing import Annotated

import click
import typer
from click.core import ParameterSource

from fedlsg.simulations.cli.options import (
    Choice,
    Label,
    TrustCode,
    console,
    device_in,
    let_run,
    option,
    setting,
    starting,
)
from fedlsg.simulations.planning.trust import READS
from fedlsg.simulations.settings.settings import merge, permit_code
from fedlsg.user_code.failure import last_words


def inspect(
    directory: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Run directory; or --workload without a run."),
    ] = None,
    workload: Annotated[
        str | None,
        option(
            help="Instead of a run: this one at its initial weights. Or RUN's own, FILE.py:NAME."
        ),
    ] = None,
    method: Annotated[str | None, option(help="With --workload: the recipe; default lsg.")] = None,
    rank: Annotated[int | None, option(help="With --workload: rank r of the carriers.")] = None,
    examples: Annotated[
        int, option(help="Rows of the training data that are read; default 512.")
    ] = 512,
    sparsities: Annotated[
        str | None, option(help="Shares p to compare; default 0,0.1,0.3,0.5,0.7,0.9.")
    ] = None,
    ranks: Annotated[
        str | None, option(help="Ranks of the residuals; default powers of two.")
    ] = None,
    layer: Annotated[
        list[str] | None, option(help="Layer with an intensity map; repeatable.")
    ] = None,
    energy: Annotated[
        str | None,
        option(
            help="Also energy kept by all kinds of carriers, at rounds 1,last; others need "
            "--record-updates."
        ),
    ] = None,
    noiseless: Annotated[
        bool,
        option(
            "--noiseless",
            help="Also what noise and clip cost: trains twice more, each as long as the run.",
        ),
    ] = False,
    device: Annotated[str | None, setting("device")] = None,
    trust_code: TrustCode = False,
    out: Annotated[str | None, option(help="Directory; default inspection/ in the run.")] = None,
    config: Choice = None,
) -> None:
    """Gradient statistics that the papers show: NOT PRIVATE, for simulations only."""
    given = merge({"workload": workload, "method": method, "rank": rank, "device": device}, config)
    if directory is None and workload is None:
        raise ValueError("expected a run directory, or --workload")
    with starting():
        from fedlsg.simulations.inspection.inspect_command import inspect_command
        from fedlsg.simulations.report.pages.figure import check_drawing

        check_drawing()
        given = let_run([] if directory is None else [directory], given, trust_code)

    inspect_command(
        directory,
        given,
        console,
        out=out,
        examples=examples,
        sparsities=sparsities,
        ranks=ranks,
        layers=layer or [],
        energy=energy,
        noiseless=noiseless,
        device=device_in(given),
    )


class NotAudited(click.ClickException):
    """An audit that could not begin, or broke: its status is not that of "falsified"."""

    exit_code = 2


def audit(
    directory: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Run directory; without one, the options below."),
    ] = None,
    workload: Annotated[
        str | None, option(help="Without a run: as in fedlsg run, default digits.")
    ] = None,
    method: Annotated[str | None, option(help="Without a run: the recipe; default lsg.")] = None,
    epsilon: Annotated[
        float | None, option(help="Without a run: the claim; default the workload's.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, option(help="Without a run: the noise multiplier sigma, instead.")
    ] = None,
    mode: Annotated[
        str, option(help="unit (canary gradients; default) or training (canary examples).")
    ] = "unit",
    canaries: Annotated[
        int | None, option(help="How many; default 5000 in unit mode, 300 in training.")
    ] = None,
    canary_kind: Annotated[
        str | None, option(help="In training mode: mislabelled or two-tone.")
    ] = None,
    plant: Annotated[
        str | None, option(help="Plant a mistake, such as halved-noise or per-block-clip.")
    ] = None,
    seed: Annotated[
        int | None, option(help="Repeats the audit's draws and noise; default fresh ones.")
    ] = None,
    device: Annotated[str | None, setting("device")] = None,
    trust_code: TrustCode = False,
    out: Annotated[
        str | None, option(help="Folder, or a file NAME.json; default the run, else this folder.")
    ] = None,
    config: Choice = None,
) -> int:
    """Try to falsify a claimed epsilon: status 0 and "not falsified", status 1 and "falsified", or
    status 2 where nothing was audited.
    """
    try:
        named = {
            "workload": workload,
            "method": method,
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
        }
        given = merge({**named, "device": device}, config)
        with starting():
            from fedlsg.simulations.attacks.audit.audit_command import audit_command

            given = let_run([] if directory is None else [directory], given, trust_code)

        return audit_command(
            directory,
            given,
            console,
            mode=mode,
            canaries=canaries,
            canary_kind=canary_kind,
            plant=plant,
            seed=seed,
            out=out,
            device=device_in(given),
        )
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        raise NotAudited(last_words(error)) from error


def attack(
    context: typer.Context,
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN...]", help="Runs with recorded updates.")
    ] = None,
    compare: Annotated[
        str | None, option(help="Instead: record and attack these recipes at equal sigma.")
    ] = None,
    sparsities: Annotated[
        str | None, option(help="With --compare: a run for each, as 0,0.3,0.6.")
    ] = None,
    sigmas: Annotated[
        str | None, option(help="With --compare: a run for each sigma; 0 is no noise.")
    ] = None,
    record: Annotated[
        bool,
        option(
            "--record",
            help="Record and attack a short run like each RUN, with one example a batch.",
        ),
    ] = False,
    against: Annotated[
        list[str] | None,
        option(
            metavar="KEY=VALUE",
            help="Record RUN, or settings, with and without this one, on the same examples; "
            "repeatable: mechanism=none is without privacy.",
        ),
    ] = None,
    membership: Annotated[
        bool,
        option(
            "--membership",
            help="Instead: who was trained on? Trains shadows of a RUN, or of settings.",
        ),
    ] = False,
    shadows: Annotated[
        int | None, option(help="With --membership: shadow models, even, default 16.")
    ] = None,
    workload: Annotated[
        str | None, option(help="With --compare, --membership: as in fedlsg run, default digits.")
    ] = None,
    method: Annotated[
        str | None,
        option(help="With --against, --membership, without a run: the recipe; default lsg."),
    ] = None,
    epsilon: Annotated[float | None, option(help="As --method: default the workload's.")] = None,
    noise_multiplier: Annotated[
        float | None, option(help="As --method: the noise multiplier sigma, instead.")
    ] = None,
    view: Annotated[
        str | None,
        option(
            help="client (each payload) or aggregate (their sum); default client, with --against "
            "what the server sees."
        ),
    ] = None,
    labels: Annotated[str, option(help="known (default) or unknown to the adversary.")] = "known",
    examples: Annotated[
        str, option(help="known (default) or unknown: how many are in the batch.")
    ] = "known",
    batch: Annotated[
        str | None,
        option(help="Batch sizes that are attacked; default the smallest that are recorded."),
    ] = None,
    images: Annotated[int, option(help="Images or texts of each batch size, default 8.")] = 8,
    attacks: Annotated[
        str | None,
        option(help="With commas, see fedlsg docs attacks; default the strongest that fit."),
    ] = None,
    naive: Annotated[
        bool, option("--naive", help="Also attacks that ignore projection, mask and clip.")
    ] = False,
    seconds: Annotated[
        float | None,
        option(help="Of one attack on one update; default 20, or 90 in all on small images."),
    ] = None,
    seed: Annotated[int, option(help="Of the attacks' starting points, default 0.")] = 0,
    device: Annotated[str | None, setting("device")] = None,
    trust_code: TrustCode = False,
    out: Annotated[
        str | None, option(help="Folder; default the run, or attack/ for several.")
    ] = None,
    config: Choice = None,
) -> None:
    """What an adversary gets from the updates that runs recorded (fedlsg run --record-updates).

    With --membership: from a trained model, by models trained with the same settings.
    """
    with starting():
        from fedlsg.attacks.observation import ThreatModel
        from fedlsg.simulations.attacks import attack_command, options_of
        from fedlsg.simulations.attacks.before_after import before_after_command
        from fedlsg.simulations.attacks.whole_updates import attack_whole_updates, has_whole_updates
        from fedlsg.simulations.report.pages.figure import check_drawing

        check_drawing("attacks")

    named = {
        "workload": workload,
        "method": method,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
    }
    given = merge({**named, "device": device}, config)
    where = device_in(given)
    other = merge({}, against, "--against")
    for name in (compare or "").split(","):
        permit_code({"method": name.strip()})
    with starting():
        # the rest replaces the run's own
        needs = [name for name in READS if not ((record or other) and name in given)]
        given = let_run(runs or [], given, trust_code, needs=needs)
    asked = {
        name
        for name in context.params
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if membership:
        with starting():
            from fedlsg.simulations.attacks.membership import membership_command, only_run

        run = only_run(runs or [], asked)
        return membership_command(
            run, given, console, shadows=shadows, seed=seed, device=where, out=out
        )
    of_settings = set() if other else {"method", "epsilon", "noise_multiplier"}
    if alone := sorted(asked & {"shadows", *of_settings}):
        raise ValueError(
            f"--{alone[0].replace('_', '-')} belongs to --membership: add that, or leave it out"
        )
    threat = ThreatModel(view=view or "client", labels=labels, examples=examples)  # type: ignore[arg-type]
    options = options_of(
        batches=batch,
        images=images,
        attacks=attacks,
        naive=naive,
        seconds=seconds,
        seed=seed,
        device=where,
    )
    if other:
        if gone := sorted(asked & {"compare", "record", "sparsities", "sigmas"}):
            raise ValueError(f"--against records two runs of its own: leave out --{gone[0]}")
        return before_after_command(
            runs or [],
            console,
            given=given,
            against=other,
            threat=threat,
            view_given=view is not None,
            options=options,
            device=where,
            out=out,
        )
    if runs and len(runs) == 1 and not record and has_whole_updates(runs[0]):
        if unused := sorted(asked - {"runs", "device", "trust_code", "out"}):
            raise ValueError(
                f"{runs[0]} holds updates of whole clients, which one attack reads: leave out "
                f"--{unused[0].replace('_', '-')}"
            )
        return attack_whole_updates(runs[0], console, out=out)
    attack_command(
        runs or [],
        console,
        compare=compare,
        given=given,
        threat=threat,
        options=options,
        record=record,
        sparsities=sparsities,
        sigmas=sigmas,
        device=where,
        out=out,
    )


def export(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="[figures] RUN",
            help="Directory of a finished run; with figures also of a comparison.",
        ),
    ],
    out: Annotated[
        str | None, option(help="New folder; default export/ in the run, or figures-RUN here.")
    ] = None,
    merge_lora: Annotated[
        bool, option("--merge-lora", help="Write W_0 + s B A, and no factors of LoRA.")
    ] = False,
    unfinished: Annotated[
        bool,
        option(
            "--unfinished",
            help="Of an interrupted run: write its last weights into RUN, for start_from=RUN.",
        ),
    ] = False,
    label: Label = None,
) -> None:
    """Write the trained model as a folder that plain torch, or transformers, loads without fedlsg.

    With figures: the curves as PDF, SVG and PNG instead, as wide as a column of a paper with two.
    """
    *rest, directory = what
    if rest == ["figures"]:
        from fedlsg.simulations.cli.export import figures_command
        from fedlsg.simulations.compare.results.bytes_axis import read_labels

        figures_command(directory, out, console, read_labels(label or ()))
        return
    if label:
        raise ValueError("--label belongs to fedlsg export figures: leave it out")
    if rest:
        raise ValueError(f"expected RUN, or figures and RUN, got {' '.join(what)}")
    if unfinished:
        from fedlsg.simulations.cli.export import export_unfinished

        if out is not None or merge_lora:
            raise ValueError("--unfinished writes into RUN as it is: leave --out, --merge-lora out")
        export_unfinished(directory, console)
        return
    from fedlsg.simulations.cli.export import export_command

    export_command(directory, out, merge_lora, console)


def payload(
    directory: Annotated[str, typer.Argument(metavar="RUN", help="Run that recorded its updates.")],
    round: Annotated[int | None, option(help="Round, from 1.")] = None,
    client: Annotated[int | None, option(help="Client, from 0.")] = None,
    out: Annotated[str | None, option(help="New file, .npz.")] = None,
) -> None:
    """Write one recorded payload (fedlsg run --record-updates) as arrays that numpy reads.

    indices and values: what was sent, in the flat vector of the round's frame.json. dW/NAME: the
    gradient of each parameter that the payload implies (Eq. 3). All are sums over the client's
    batch; divided by the array divisor, the client's expected batch size q N, they are its mean
    gradient (times K with K local steps).
    """
    if round is None or client is None or out is None:
        missing = {"--round 1": round, "--client 0": client, "--out payload.npz": out}
        gone = ", ".join(name for name, value in missing.items() if value is None)
        raise click.UsageError(f"one payload is one client's in one round: give {gone}")
    from fedlsg.simulations.cli.payload import payload_command

    payload_command(directory, round, client, out, console)
