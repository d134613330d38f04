"""The commands ``fedlsg run``, ``resume`` and ``calibrate``, after their options are parsed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedlsg import strategies
from fedlsg.accounting import calibrate_noise_multiplier
from fedlsg.accounting import epsilon as epsilon_of
from fedlsg.carriers import layer_table
from fedlsg.privacy.sampling import epochs_begun
from fedlsg.simulations import workloads
from fedlsg.simulations.engines import engine, signals
from fedlsg.simulations.engines.choice import with_engine
from fedlsg.simulations.engines.door import limited_memory
from fedlsg.simulations.engines.watchers import RayLostError, last_word
from fedlsg.simulations.planning.advice.alike_names import alike_line
from fedlsg.simulations.planning.advice.balance import dealt
from fedlsg.simulations.planning.advice.hints import at_guessing, guessing_line
from fedlsg.simulations.planning.advice.remarks import (
    CLAIM,
    advice,
    batches_line,
    embeddings_line,
    isolation_line,
    pull,
    rho_line,
    sum_line,
    torch_func_line,
)
from fedlsg.simulations.planning.base.charged_before import Before, read_before
from fedlsg.simulations.planning.base.disclosure import is_covered
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.start_weights import from_root
from fedlsg.simulations.planning.client_noise import NO_NOISE
from fedlsg.simulations.planning.earlier_runs.continuity import (
    begin,
    check_unchanged,
    go_further,
    refuse_lost_checkpoint,
    settings_further,
)
from fedlsg.simulations.planning.plan import Plan, planned_epsilon
from fedlsg.simulations.planning.trust import CONTINUES, NOTHING, allow_code
from fedlsg.simulations.report.page_of_run.client_table import ON_TERMINAL, client_table
from fedlsg.simulations.report.terminals.progress import lasting, showing, working
from fedlsg.simulations.report.terminals.terminal import (
    layers_shown,
    print_line,
    print_table,
    print_whole,
    summary_table,
)
from fedlsg.simulations.report.words import epsilon_words, features_line
from fedlsg.simulations.report.words import named as named_in
from fedlsg.simulations.run.live import following
from fedlsg.simulations.run.on_record import on_record, writer_of
from fedlsg.simulations.run.public_trial import learn_public_rows
from fedlsg.simulations.server.callbacks import Callback
from fedlsg.simulations.server.deployment import refuse_deployed_run
from fedlsg.simulations.server.divergence import refuse_diverged
from fedlsg.simulations.server.named_callbacks import named
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.server.restore import restore
from fedlsg.simulations.settings.automatic import method_line, rule_line
from fedlsg.simulations.settings.settings import Settings, words_given
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.storage.atomic_files import resumable
from fedlsg.simulations.storage.lock import create, exclusive
from fedlsg.simulations.storage.results import read_clients, refuse_own_noise
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import LoadedWorkload
from fedlsg.state import different_terms, mean_frame
from fedlsg.user_code import is_reference, shown
from fedlsg.user_code.failure import left_users_code

Again = Callable[[RunDir], str]
"""A function that says how to continue an interrupted run."""
KILLED = (
    "fedlsg: the run was killed, or ended by Ray because its raylet or control service (GCS) was "
    "lost"
)
"""The message of a watcher, after this process was killed."""


def run_command(
    given: dict[str, Any],
    out: str | None,
    console: Console,
    *,
    opens: bool = False,
    loaded: LoadedWorkload | None = None,
    began: float | None = None,
    recorded: bool = False,
    check: Callable[[Plan], None] | None = None,
) -> None:
    """``fedlsg run``: make the plan first, so that a wrong setting leaves nothing behind.

    opens: whether a page follows the run.
    loaded: as in ``prepare``.
    began: as in ``Plan``.
    recorded: whether this process continues after the run, so that it must keep what was spent on
        its user's rows and weights.
    check: raises for a plan that must not run, before anything is written.
    """
    if given.get("run_dir") is not None:
        raise ValueError(
            f"run_dir={given['run_dir']} is written by a run itself: give the folder as --out"
        )
    settings = settings_of(given)
    callbacks = named(settings.callbacks)  # first: it may raise
    with working(console, "loading data, calibrating noise") as say:
        plan = ready_plan(
            settings,
            progress=say,
            given=words_given(given),
            loaded=loaded,
            callbacks=callbacks,
            began=began,
        )
    if check is not None:
        check(plan)
    writer = writer_of(plan)  # refuses weights that were trained on rows
    with ExitStack() as stack:
        plan, directory = stack.enter_context(begun(plan, out, console))
        if opens:
            stack.enter_context(following(directory.path, console))
        if recorded:
            stack.enter_context(on_record(plan, directory, writer, console))
        execute(plan, directory, console, callbacks=callbacks)


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings of a run from those that a user gave for it."""
    return from_root(resolve(given))


@contextmanager
def begun(
    plan: Plan, out: str | None, console: Console, again: Again | None = None
) -> Iterator[tuple[Plan, RunDir]]:
    """Choose the engine, make the run directory and print the plan; the block runs it.

    ``again``: as in ``going_on``.
    """
    plan, why = with_engine(plan)
    directory = create(out, plan.settings, private=not is_covered(plan))
    with going_on(directory, console, again):
        plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
        begin(plan, directory)
        announce(plan, console, why)
        if plan.before.histories:
            print_line(f"goes on from {plan.settings.start_from}: {total_line(plan)}", console)
        yield plan, directory


def by_command(directory: RunDir) -> str:
    """The command that continues a run."""
    return f"continue with: fedlsg resume {directory.path}"


@contextmanager
def going_on(directory: RunDir, console: Console, again: Again | None = None) -> Iterator[None]:
    """Print how to continue the run if the block is interrupted after the run has begun.

    ``again``: says how; by default, by command.
    """

    def words() -> str:
        return (again or by_command)(directory) if directory.config.exists() else ""

    try:
        with signals.with_words(words):
            yield
    except (KeyboardInterrupt, SystemExit):
        line = words()
        if line:
            print_whole(line, console)
        if directory.read_rounds():
            from fedlsg.simulations.report.page_of_run.run_page import write_run_page

            write_run_page(directory)
            print_whole(f"rounds so far  {directory.path / 'report.html'}", console)
        raise


def resume_command(
    path: str,
    console: Console,
    named_code: Mapping[str, object] = NOTHING,
    *,
    trust_code: bool = False,
    opens: bool = False,
    further: Mapping[str, Any] = NOTHING,
    began: float | None = None,
    recorded: bool = False,
) -> None:
    """``fedlsg resume``: continue a run with its settings, ledger and (if allowed) code.

    ``further``: as in ``continued``. ``began``: as in ``Plan``. ``recorded``: as in
    ``run_command``.
    """
    directory = RunDir.open(path)
    _refuse_script(directory)
    with going_on(directory, console):
        plan = continued(
            directory, console, named_code, trust_code=trust_code, further=further, began=began
        )
        with ExitStack() as stack:
            if opens:
                stack.enter_context(following(directory.path, console))
            if recorded:
                writer = writer_of(plan, ledger_goes_on=True)
                stack.enter_context(on_record(plan, directory, writer, console))
            execute(plan, directory, console, callbacks=named(plan.settings.callbacks))


def _refuse_script(directory: RunDir) -> None:
    """Raise ValueError for a run whose workload or method is defined in a script or notebook."""
    settings = directory.read_config()
    workload, method = settings.workload, settings.method
    unknown = []
    # the reference is tested first: to look it up is to run its code
    by_name = not is_reference(workload) and workload not in workloads.names()
    if by_name and workloads.own(workload) is None:
        unknown.append(f"workload {workload!r}")
    if not is_reference(method) and method not in (*strategies.names(), *strategies.given()):
        unknown.append(f"method {method!r}")
    if unknown:
        raise ValueError(
            f"{directory.path} was begun by fedlsg.simulate, and its {' and '.join(unknown)} "
            f"{'are' if len(unknown) > 1 else 'is'} in that script or notebook alone: call "
            f"simulate there as before, with out={str(directory.path)!r} and resume=True"
        )


def continued(
    directory: RunDir,
    console: Console,
    named_code: Mapping[str, object] = NOTHING,
    *,
    trust_code: bool = False,
    further: Mapping[str, Any] = NOTHING,
    began: float | None = None,
) -> Plan:
    """The plan of an interrupted run, from its own settings, or of a run that trains further.

    further: rounds, epsilon or noise_multiplier of the whole run.
    began: as in ``Plan``.

    Raises ValueError if settings, data, code or a ledger are not those that it began with, or for a
    deployment; and as ``allow_code``, ``settings_further``.
    """
    refuse_own_noise(directory)
    refuse_deployed_run(directory)
    say = partial(print_line, console=console, style="yellow")
    allow_code(directory.path, named_code, trust_code=trust_code, needs=CONTINUES, say=say)
    saved: dict[str, Any] | None = None
    if directory.has_checkpoint:
        with resumable(directory.path), exclusive(directory):
            restored = restore(directory)
            saved = restored.state
        for note in restored.notes:
            console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    else:
        refuse_lost_checkpoint(directory)
    settings = replace(directory.read_config(), run_dir=str(directory.path))
    changes = {name: value for name, value in further.items() if value != getattr(settings, name)}
    done = 0 if saved is None else int(saved["server"]["round"])
    if changes:
        settings = settings_further(settings, changes, done)
    known = no_matter if saved else None  # without a checkpoint its noise is still to be planned
    with working(console, "loading data") as phase:
        # config.toml is the user's, and may say auto
        plan, _ = with_engine(
            ready_plan(
                settings,
                progress=phase,
                spent=partial(spent_in, directory, rounds=done) if changes else known,
                noise=NO_NOISE
                if saved is None or changes
                else saved["plan"].get("noise", NO_NOISE),
                began=began,
            )
        )
    if saved is not None:
        changed = check_unchanged(saved["plan"], plan, directory, further=bool(changes))
        if changed:
            print_line(f"changed since the last run: {', '.join(changed)}", console, "yellow")
        if changes:
            print_line(further_line(plan), console)
            with resumable(directory.path), exclusive(directory):
                go_further(plan, directory, saved)
    return plan


def no_matter(base: Base) -> Before:
    """No earlier charges: they do not matter if the noise is known already."""
    return Before()


def spent_in(directory: RunDir, base: Base, *, rounds: int = 0) -> Before:
    """The earlier charges of the clients of a base, from the ledgers of a run directory."""
    return read_before(
        directory.charges, base.clients.kinds, rounds=rounds, at_server=base.unit.at_server
    )


def further_line(plan: Plan) -> str:
    """A sentence about the rounds and the total epsilon of a run that trains further."""
    done, rounds = plan.before.rounds, plan.schedule.rounds
    return f"{done} rounds are finished, {rounds - done} follow: {total_line(plan)}"


def total_line(plan: Plan) -> str:
    """A sentence about the epsilon of earlier charges and of the coming rounds together."""
    s, mechanism = plan.settings, plan.method.mechanism
    if not mechanism.private:
        return f"mechanism {mechanism.kind!r} claims no epsilon"
    test = ", if the noise were secret" if s.reproducible else ""
    noise = max(t.noise_multiplier for t in different_terms(plan.terms))
    return (
        f"at noise multiplier {noise:.5g} the epsilon of both together will be "
        f"{epsilon_words(planned_epsilon(plan))} at delta {s.delta:g}{test}"
    )


def execute(
    plan: Plan,
    directory: RunDir,
    console: Console,
    *,
    callbacks: Sequence[Callback] = (),
    again: Again | None = None,
) -> None:
    """Run or continue a plan with the live display, then print the summary.

    callbacks: all of them, from settings and arguments.
    again: as in ``going_on``.

    Raises RuntimeError for a run that diverged; its report ends with the last finite round.
    """
    with exclusive(directory):
        pass  # a test before Ray starts: ``serve`` takes the lock again
    words = (again or by_command)(directory)
    ray = plan.settings.engine != "local"
    try:
        done = directory.last_round()
        with (
            last_word(f"{KILLED}; {words}", console) if ray else nullcontext(),
            with_names(plan.clients.names),
            showing(console, plan.schedule.rounds, done, plan.clients.names) as display,
            lasting(console) as say,
        ):
            say("starting the engine")
            for row in directory.read_rounds()[:done]:
                display.count(Row.parse(row))

            def on_round(row: Row) -> None:
                display.on_round(row)
                last = row.round == plan.schedule.rounds
                say("the last checks and the report" if last else f"round {row.round + 1}")

            summary = engine(plan.settings.engine)(
                plan, directory, on_round=on_round, callbacks=callbacks
            )
    except Exception as error:
        is_lost = isinstance(error, RayLostError)
        if is_lost or (left_users_code(error) and directory.has_checkpoint):
            print_whole(words, console)
        raise
    if summary["diverged"]:
        text = f"the rounds before it are in {directory.path / 'report.html'}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    refuse_diverged(summary)
    if summary["stopped"]:
        stopped = named_in(str(summary["stopped"]), plan.clients.names)
        console.print(f"stopped early: {stopped}", style="yellow", markup=False, highlight=False)
    rows = read_clients(directory)
    console.print(summary_table({**summary, "by_client": rows or summary.get("by_client", ())}))
    if rows:
        print_table(client_table(rows, ON_TERMINAL, "each client"), console)
    if not console.quiet and at_guessing(summary):
        line = _guessing_advice(plan, directory, summary)
        if line:
            print_line(line, console, "yellow")
    console.print(
        f"[bold]run directory[/bold]  {escape(str(directory.path))}",
        highlight=False,
        soft_wrap=True,
    )


def _guessing_advice(plan: Plan, directory: RunDir, summary: Mapping[str, Any]) -> str | None:
    """What to change first in a run that has ended at the accuracy of guessing."""
    losses = [Row.parse(row).loss for row in directory.read_rounds()]
    return guessing_line(
        summary,
        plan.settings.auto,
        losses=[loss for loss in losses if loss is not None],
        pull=pull(plan) if plan.method.mechanism.adds_noise else None,
        trial=learn_public_rows(plan),
    )


@contextmanager
def with_names(names: Sequence[str] | None) -> Iterator[None]:
    """Let errors of the block name clients by their names, not by their numbers."""
    try:
        yield
    except Exception as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (named_in(error.args[0], names), *error.args[1:])
        raise


def announce(plan: Plan, console: Console, why: str = "") -> None:
    """Print the plan, a warning if it is not private, and remarks; ``why``: the engine's reason."""
    s, mechanism = plan.settings, plan.method.mechanism
    sizes, rate = plan.clients.sizes, plan.local.sample_rate
    print_line(
        f"{shown(s.workload)}: {len(sizes)} clients with {min(sizes)} to {max(sizes)} "
        f"{plan.unit.counted}, "
        f"{plan.schedule.rounds} rounds at {batches_line(s, sizes, plan.unit.rate(rate))}, "
        f"method {shown(s.method)}, engine {s.engine}",
        console,
    )
    if why:
        print_line(f"engine {s.engine}: {why}", console)
    if words := dealt(plan):
        print_line(words, console)
    if plan.workload.said:
        print_line(plan.workload.said, console)
    if s.sampling == "shuffle":
        print_line(CLAIM, console)
    if words := features_line({"features": plan.workload.features}):
        print_line(f"features: {words}", console)
    if not mechanism.private or s.reproducible:
        why = (
            "the noise is reproducible"
            if mechanism.private
            else f"mechanism {mechanism.kind!r} claims no epsilon"
        )
        print_line(f"NOT PRIVATE: {why}", console, "bold red")
    if s.public_rows is not None:
        print_line(f"the clients hold public rows: {s.public_rows}", console)
    elif s.holdout is not None:
        why = "they are of held-out training rows, without noise, and no epsilon covers them"
        print_line(f"the accuracies are NOT PRIVATE: {why}", console, "bold red")
    for line in (method_line(s), rule_line(s), limited_memory() if s.engine == "ray" else None):
        if line:
            print_line(line, console)
    for line in (*advice(plan), *plan.for_owner, *plan.notes, alike_line(plan.clients.names)):
        if line:
            print_line(line, console, "yellow")
    public = plan.initial.server().public  # of the initial model, pruned where that reads no data
    carrier = plan.method.carrier
    # factors of the update have no mask
    blocks = None if not carrier.adds_up else mean_frame(public).blocks
    layers = layer_table(public.model, carrier, plan.workload.classifier, blocks=blocks)
    if any(row.travel != "dense" for row in layers):
        console.print(layers_shown(layers))
    lines = (
        sum_line(plan, public),
        rho_line(plan, public),
        embeddings_line(plan),
        torch_func_line(plan),
    )
    for line in (isolation_line(plan, public), *lines):
        if line is not None:
            print_line(line, console)


def calibrate_command(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    sample_rate: float | None,
    steps: int,
    console: Console,
    *,
    epoch_batches: int | None = None,
) -> None:
    """``fedlsg calibrate``; ``epoch_batches``: of shuffled batches, which have no sample rate.

    Raises ValueError for both a sample rate and ``epoch_batches``, and unless one of epsilon and
    noise is given.
    """
    if sample_rate is not None and epoch_batches is not None:
        raise ValueError(
            "give --sample-rate (Poisson batches) or --epoch-batches (shuffled ones), not both"
        )
    sample_rate = 0.01 if sample_rate is None else sample_rate
    title = f"q = {sample_rate:g}, {steps} steps, add/remove"
    if epoch_batches is not None:
        if epoch_batches < 1:
            raise ValueError(
                f"expected --epoch-batches={epoch_batches} >= 1: batch size B cuts N rows into "
                "ceil(N / B)"
            )
        epochs = epochs_begun(steps, epoch_batches)
        title = (
            f"{steps} shuffled batches, {epoch_batches} an epoch: {epochs} epochs, zero-out, no "
            "amplification"
        )
        # an epoch of shuffled batches is accounted as one step with all rows
        sample_rate, steps = 1.0, epochs
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "give either --epsilon (to get a noise multiplier) or --noise-multiplier (to get "
            "epsilon)"
        )
    sigma = noise_multiplier
    if sigma is None:
        assert epsilon is not None
        sigma = calibrate_noise_multiplier(
            epsilon=epsilon, delta=delta, sample_rate=sample_rate, steps=steps
        )
    bound = epsilon_of(sample_rate=sample_rate, noise_multiplier=sigma, steps=steps, delta=delta)
    words = epsilon_words(bound.upper, 4)
    console.print(
        f"noise multiplier {sigma:.5g}: epsilon {words} at delta {delta:g}", highlight=False
    )
    witness = "" if bound.witness == "prv" else ", unwitnessed"
    table = Table("accountant", "lower", "estimate", "upper", title=title)
    for name, interval in bound.intervals.items():
        mark = ""
        if name == bound.accountant:
            mark = f" (reported{witness})"
        elif name == bound.witness:
            mark = " (witness)"
        table.add_row(
            name + mark,
            f"{interval.lower:.4f}",
            f"{interval.estimate:.4f}",
            epsilon_words(interval.upper, 4),
        )
    for name, failure in bound.failures.items():
        table.add_row(name, "--", "--", failure)
    console.print(table)
