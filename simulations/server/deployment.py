"""The nodes of a deployment, as its server sees them: identities, budgets, copies of ledgers.

The nodes report N_k of every client, so the plan is made after they have replied. The server loads
none of their rows.
"""

import math
import shlex
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.common.logger import log
from flwr.serverapp import Grid

from fedlsg.accounting import AccountingError, Event, compose
from fedlsg.config.units import unit_named
from fedlsg.privacy import Entry, Ledger, RunLedger, extend, read_entries
from fedlsg.privacy.run_ledger import ClientCharges
from fedlsg.secure_sum.discrete.sum_release import MOST_EXAMPLES
from fedlsg.simulations.planning.client_noise import events_of
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.settings.own_epsilons import BELOW, numbered, text_of
from fedlsg.simulations.settings.settings import RUN, Settings
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.expectations import MAX_DECLARED_EXAMPLES, reason_of
from fedlsg.strategies.protocol.nodes import Identity, Roster, wait_for_nodes
from fedlsg.strategies.protocol.proofs import LedgerCopies, News, check_news
from fedlsg.strategies.protocol.watched_grid import WatchedGrid


def refuse_deployed_run(run: RunDir) -> None:
    """Raise ValueError with the command that continues it, if the run is one of a deployment.

    ``flwr run`` takes its config.toml as run config, as long as that names this folder.
    """
    if not is_deployed(run):
        return
    config = shlex.quote(str(run.config))
    write_config = ""
    if run.read_values().get("run_dir") != str(run.path):
        line = shlex.quote(f'run-dir = "{run.path}"')
        write_config = f"(grep -v '^run-dir' {config}; echo {line}) > continue.toml && "
        config = "continue.toml"
    raise ValueError(
        f"{run.path} is a run of a deployment, whose clients have the data and the ledgers: start "
        f"the SuperLink again, and continue with: {write_config}flwr run APP FEDERATION "
        f"--run-config {config} --stream (APP and FEDERATION: those of the flwr run that began it)"
    )


def is_deployed(run: RunDir) -> bool:
    """Whether a run is one of a deployment."""
    if run.has_checkpoint:
        return bool(run.resume_point()[0].get("name"))
    values = run.read_values()
    # only in runs of Flower's engine, config.toml names its own folder
    return values.get("engine") == "flower" and values.get("run_dir") == str(run.path)


@dataclass(kw_only=True, eq=False)
class Deployment:
    """The nodes of a deployment.

    timeout: seconds of a round.
    most_examples: largest N_k that a node may declare.
    roster: the nodes that are clients.
    copies: copies of the nodes' ledgers; None before ``open``.
    watched: Flower's grid with a limit on the time of each node; None before ``watch``.
    """

    timeout: float
    most_examples: int = MAX_DECLARED_EXAMPLES
    roster: Roster = field(init=False)
    copies: LedgerCopies | None = None
    watched: WatchedGrid | None = None
    _news: dict[int, News] = field(default_factory=dict)
    """Ledger entries by client that arrived before the run has a folder: they wait for ``open``."""
    _most: dict[int, tuple[float, float]] = field(default_factory=dict)
    """The budget (epsilon, delta) over all runs of each client that has one."""

    def __post_init__(self) -> None:
        self.roster = Roster(self.timeout, accept=self._accept, most_examples=self.most_examples)

    def watch(self, grid: Grid, settings: Settings) -> WatchedGrid:
        """Flower's grid with a limit on how long each node may take."""
        seconds = math.inf if settings.client_timeout is None else settings.client_timeout
        self.watched = WatchedGrid(grid, seconds, returned=self.roster.returned)
        return self.watched

    def gather(self, grid: Grid, clients: int | None) -> Sequence[int]:
        """Find the clients' nodes; returns N_k of each, see ``Roster.gather``. By default, every
        node is a client.

        Raises RuntimeError, with each node's reason, before anything is spent.
        """
        if clients is None:
            clients = len(wait_for_nodes(grid, 1))
        return self.roster.gather(grid, clients)

    def with_budgets(self, settings: Settings) -> Settings:
        """The settings with the epsilons and deltas that nodes have for one run.

        They replace the settings' values for these clients. Each node checks its own, and spends no
        more, whatever the server plans.
        """
        if settings.noise_multiplier is not None:
            return settings
        changed: dict[str, Any] = {}
        for place, what in enumerate(BELOW):  # a budget is (epsilon, delta)
            by_client = {
                client: budget[place]
                for client, budget in self.roster.budgets.items()
                if budget[place]
            }
            if by_client:
                name = f"client_{what}s"
                before = numbered(getattr(settings, name) or "", what)
                changed[name] = text_of({**before, **by_client})
        return replace(settings, **changed)

    def open(self, folder: Path, run: str) -> LedgerCopies:
        """The copies of ledgers in a run's folder, with all that the nodes have sent so far.

        A node whose ledger does not continue its copy is left out; each later round asks it again.
        """
        self.copies = LedgerCopies(folder=folder, run=run)
        for client, news in sorted(self._news.items()):
            try:
                self.copies.take(client, news)
            except ValueError as error:  # a LedgerError, or of an accountant for odd numbers
                log(WARNING, "client %d cannot take part: %s", client, reason_of(error))
                self.roster.forget(client)
        self._news.clear()
        return self.copies

    def close(self, grid: Grid, ledger: RunLedger) -> None:
        """Ask every client for its ledger once more: replies may have been lost after a charge.

        A client that does not reply, or still trains for a round that is over, may be charged for
        each announcement that its copy does not have. Those charges are made in the run's own
        ``ledger``, so that epsilon is never too small.
        """
        assert self.copies is not None
        busy = set() if self.watched is None else self.watched.busy
        late = {client for client in self.roster.sizes if self.roster.node(client) in busy}
        unconfirmed = {client: list(terms) for client, terms in self.copies.unconfirmed.items()}
        before = {client: self._rounds(client) for client in unconfirmed}
        missing = set(self.roster.ask_again(grid))
        for client in sorted(missing | late):
            new = self._rounds(client) - before.get(client, Counter())
            assumed = list[int]()
            for terms in unconfirmed.get(client, ()):
                if new[terms["round"]] > 0:  # this announcement is in the copy by now
                    new[terms["round"]] -= 1
                else:
                    self._assume(ledger.of(client), terms)
                    assumed.append(terms["round"])
            log(
                WARNING,
                "client %d %s: its ledger may have more entries than its copy in %s; rounds that "
                "it did not answer count as charged: %s",
                client,
                "is not connected" if client in missing else "still trains",
                self.copies.folder,
                assumed or "none",
            )

    def _rounds(self, client: int) -> Counter[int]:
        """How often each round of this run is in a client's copy."""
        assert self.copies is not None
        path = self.copies.path(client)
        entries = read_entries(path) if path.exists() else ()
        return Counter(entry.round for entry in entries if entry.run == self.copies.run)

    def _assume(self, charges: ClientCharges, terms: Mapping[str, Any]) -> None:
        """Charge what a client may have charged for an announcement with these ``terms``."""
        assert self.copies is not None
        attempt = charges.next_attempt(terms["round"], self.copies.run)
        entry = Entry(client=charges.client, attempt=attempt, run=self.copies.run, **terms)
        charges.charge(charges.next_batch(entry))

    def check_budgets(self, plan: Plan) -> None:
        """Raise ValueError if clients' budgets over all runs are too small for the planned rounds.

        It is checked before anybody is charged. With the setting ``partial_run``, or if less than
        half of the clients are concerned, it is only a warning: a few nodes cannot keep a run from
        starting. Each client checks every charge itself, too.
        """
        unfit = self._unfit(plan)
        if not unfit:
            return
        reasons = "; ".join(
            f"client {client} has epsilon-max={self._most[client][0]:g} over all runs, with "
            f"{spent:.4g} spent: {fit} of its {planned} rounds fit"
            for client, (spent, fit, planned) in sorted(unfit.items())
        )
        if plan.settings.partial_run or 2 * len(unfit) < len(plan.terms):
            log(WARNING, "the run will go on without clients whose budget ends: %s", reasons)
            return
        raise ValueError(
            f"nobody was charged: {reasons}. Give a smaller epsilon (more noise, less spent), ask "
            "for a larger epsilon-max, or give partial-run=true, which trains the rounds that fit "
            "and spends the rest"
        )

    def _unfit(self, plan: Plan) -> dict[int, tuple[float, int, int]]:
        """The clients whose budget is too small, from the ledgers that they sent.

        By client: epsilon spent before, rounds that fit, planned rounds.
        """
        blocks = count_blocks(plan)
        unfit = {}
        with TemporaryDirectory() as folder:
            for client, news in self._news.items():
                planned = plan.clients.steps[client] // plan.clients.steps_a_round
                if client not in self._most or not planned:
                    continue
                path = Path(folder) / f"{client}.jsonl"
                if news.lines:
                    extend(path, client, news.lines, news.head)
                ledger, most = Ledger(path, client=client), self._most[client]
                fits = partial(_fits, plan, client, ledger.events(), blocks, most)
                if fits(planned):
                    continue
                # the first number of rounds that does not fit, less one; -1 if not even 0 fit
                fit = bisect_left(range(planned + 1), True, key=lambda count: not fits(count)) - 1
                spent = ledger.epsilon(most[1])
                unfit[client] = (getattr(spent, "upper", math.inf), max(fit, 0), planned)
        return unfit

    def _accept(self, identity: Identity) -> None:
        """Note the budget and the ledger entries that a node reports."""
        if identity.most is not None:
            self._most[identity.partition] = identity.most
        if self.copies is None:
            self._news[identity.partition] = check_news(identity.partition, identity.news)
        else:
            self.copies.take(identity.partition, identity.news)


def _fits(
    plan: Plan,
    client: int,
    before: Sequence[Event],
    blocks: int,
    most: tuple[float, float],
    rounds: int,
) -> bool:
    """Whether a client may take part in so many rounds: whether its epsilon stays in its budget.

    before: the events in its ledger.
    blocks: of the model, see ``events_of``.
    most: its budget (epsilon, delta) over all runs.
    """
    terms, clients = plan.terms[client], plan.clients
    training, *pruning = events_of(plan, terms, blocks)
    steps = clients.accounted_steps(terms.num_examples, rounds * clients.steps_a_round)
    events = (*before, *pruning, *([replace(training, steps=steps)] if rounds else []))
    try:
        return compose(events, delta=most[1], accountants=("pld",)).upper <= most[0]
    except AccountingError:
        return False


def most_examples(settings: Settings) -> int:
    """The largest N_k that a node may declare: delta must be below 1 / N_k.

    Secure sums have a limit of their own. A node that declares more is left out: with it in the
    plan, the whole run would be refused.
    """
    most = MOST_EXAMPLES if settings.trust == "secure" else MAX_DECLARED_EXAMPLES
    if unit_named(settings.unit).whole:  # delta does not depend on N_k: a unit is a client
        return most
    delta = settings.delta
    if delta is None:
        delta = float(RUN["delta"].setting.fallback or 0)
    return min(most, max(math.ceil(1 / delta) - 1, 1))
