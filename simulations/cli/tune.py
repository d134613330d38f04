"""The command that chooses settings by trials: ``fedlsg tune``."""

from typing import Annotated

import typer

from simulations.cli.options import Choice, console, option, setting, starting
from simulations.settings.settings import merge

ON = "Rows of the trials: data:NAME or data:PATH (public rows), synthetic, or held-out (costs privacy)."
VARY = (
    "Setting to choose, or NAME=4,8,16; repeatable. Default learning_rate, clip_norm, rank, out_rank, refresh_rounds."
)


def tune(
    workload: Annotated[str | None, typer.Argument(help="As in fedlsg run; default digits.")] = None,
    method: Annotated[str | None, setting("method")] = None,
    on: Annotated[str | None, option(help=ON)] = None,
    vary: Annotated[list[str] | None, option(metavar="NAME[=VALUES]", help=VARY)] = None,
    epsilon: Annotated[float | None, setting("epsilon")] = None,
    seeds: Annotated[int, option(help="How many, from 100; default 1.")] = 1,
    trial_rounds: Annotated[int | None, option(help="Rounds of a trial; default those of the run.")] = None,
    jobs: Annotated[int | None, option(help="Trials at a time; as in compare.")] = None,
    budget_minutes: Annotated[float | None, option(help="Start no trial after this time.")] = None,
    engine: Annotated[str | None, option(help="local (default) or ray.")] = None,
    out: Annotated[str | None, option(help="Folder; default runs/tune-WORKLOAD-METHOD.")] = None,
    data_dir: Annotated[str | None, option(help="Local mirror of the data.")] = None,
    ray_address: Annotated[str | None, option(help="Ray cluster to join; as in run.")] = None,
    config: Choice = None,
) -> int:
    """Choose settings of a method by trials: powers of 2, until the best has a worse value on both sides.

    A grid grows while its best value is at the edge. The same command continues an interrupted search. At the end:
    the command of the run with the best settings, and what choosing them cost in privacy.
    """
    engine = engine or (None if ray_address is None else "ray")
    named = {"workload": workload, "method": method, "epsilon": epsilon, "engine": engine, "data_dir": data_dir}
    given = merge(named, config)
    with starting():
        from simulations.engines import use_cluster
        from simulations.tune.command import make_job, tune_command

    use_cluster(ray_address, engine or "local")
    with console.status("loading data"):
        job = make_job(given, on=on, vary=vary or [], seeds=seeds, trial_rounds=trial_rounds, out=out)
    return tune_command(job, console, jobs=jobs, budget_minutes=budget_minutes)
