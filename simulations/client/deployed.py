"""A deployed client's two replies: its identity, and the payload of a round.

Both check the client's terms, because each message has its own run config. Every refusal comes
before anything is spent.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedlsg.carriers.probe import CannotDrawError
from fedlsg.privacy import Entry
from fedlsg.simulations import workloads
from fedlsg.simulations.client.batch_key import batch_key
from fedlsg.simulations.client.client_account import ClientAccount
from fedlsg.simulations.client.node.conditions import (
    agreed_level,
    check_base,
    check_mechanism,
    usable,
)
from fedlsg.simulations.client.node.folder import Budget, NodeFolder
from fedlsg.simulations.client.node.node_config import NodeConfig, form_of, read_terms, reader
from fedlsg.simulations.client.node.refusals import (
    OverBudgetError,
    OwnDataError,
    RefusalError,
    SettingsError,
    TermsError,
    log_failure,
)
from fedlsg.simulations.client.process_state import Process, assemble, set_up
from fedlsg.simulations.client.rehearsal import rehearse
from fedlsg.simulations.client.secure_sum import answer_stage
from fedlsg.simulations.client.train import answer_in
from fedlsg.simulations.planning.base.clients import poisson_rate
from fedlsg.simulations.planning.base.isolation_level import with_level
from fedlsg.simulations.planning.base.memory import with_microbatch
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.training_rows import OwnData, OwnPart
from fedlsg.simulations.planning.earlier_runs.data_digest import digest_of_rows
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.planning.faults.row_faults import check_rows, check_split
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.state import ClientTerms
from fedlsg.state.round_plan import takes_part
from fedlsg.strategies.protocol.proofs import RECORD, news_record, read_held
from fedlsg.strategies.protocol.stages import asks_for_values
from fedlsg.strategies.protocol.wire import identity, read_round, stage_of, update


@dataclass(frozen=True)
class NodeAccount(ClientAccount):
    """A deployed client's account in one run, under its own budget over all runs and the run's.

    Check and charge are one step, under the folder's lock. No private row is stored.

    folder: has the client's one ledger.
    settings: of the run, resolved.
    name: of the run.
    """

    folder: NodeFolder
    settings: Resolved
    name: str

    @property
    def client(self) -> int:
        return self.folder.terms.partition

    @property
    def run(self) -> RunDir:
        return self.folder.run(self.name)

    @property
    def path(self) -> Path:
        return self.folder.path

    def of_round(self, round: int) -> tuple[Entry, ...]:
        return self.folder.ledger.of_round(round, self.name)

    def next_attempt(self, round: int) -> int:
        return self.folder.ledger.next_attempt(round, self.name)

    def next_batch(self, entry: Entry) -> Entry:
        return self.folder.ledger.next_batch(entry)

    def batch_key(self, entry: Entry) -> bytes:
        """The key for the admitted rows: accept-changed-data may change them within a run."""
        folder, size = self.run.own(self.client), self.settings.batch_size or 0
        return batch_key(folder, entry, batch_size=size, rows=self.folder.admitted())

    def charge(self, entry: Entry) -> None:
        """Charge the entry if it is private, its noise secret, and within every budget.

        Raises TermsError, OverBudgetError or LedgerError; nothing is charged then.
        """
        check_mechanism(entry.mechanism, self.settings.method)
        if entry.reproducible:
            raise TermsError(
                "reproducible noise: a deployed client never draws its noise from a known seed"
            )
        sizes = {
            earlier.num_examples
            for earlier in self.folder.ledger.entries
            if earlier.run == self.name
        }
        if sizes - {entry.num_examples}:
            raise TermsError(
                f"this client had another number of training rows earlier in the run {self.name}: "
                "N_k is fixed within a run; start a new one"
            )
        self.folder.charge(entry, self.budgets)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budget of the client over all runs, and that of this run if it has one."""
        s, terms = self.settings, self.folder.terms
        over_all_runs = Budget(epsilon=terms.epsilon_max, delta=terms.delta_max)
        if s.epsilon is None:
            return (over_all_runs,)
        return over_all_runs, Budget(epsilon=s.epsilon, delta=s.delta, run=self.name)


@dataclass(frozen=True)
class Deployed:
    """A client under the terms of its node config, with the settings of a run."""

    terms: NodeConfig
    settings: Settings

    @classmethod
    def of(cls, node_config: Any, settings: Settings) -> "Deployed":
        """The client of a node config in a run.

        Raises TermsError for an incomplete node config, or for settings that are weaker than it.
        """
        terms = read_terms(node_config)
        return cls(terms, usable(settings, terms))

    def identity(self) -> RecordDict:
        """Partition, N_k, and the whole ledger, which the server copies."""
        folder, here = self._admit()
        self._refuse_hopeless(folder, here)
        content = identity(
            self.terms.partition,
            here.num_examples,
            epsilon=self.terms.epsilon or 0.0,
            delta=self.terms.delta or 0.0,
            most=(self.terms.epsilon_max, self.terms.delta_max),
            local=False,
        )
        content[RECORD] = news_record(folder.news())
        return content

    def update(self, content: RecordDict, state: RecordDict) -> RecordDict:
        """The payload of a round, and the lines of the ledger that the server does not have.

        ``state``: of this client's own Flower Context. The reply to a stage of a secure sum without
        values has no lines.
        """
        partition = self.terms.partition
        if not asks_for_values(stage_of(content)):
            _, here = self._admit()
            return update(answer_stage(here.process.base, partition, content, state), partition)
        held = read_held(content)
        if held is None:
            raise TermsError(
                "the server names no run: it treats this client as a simulated one, or has another "
                "version of fedlsg; a deployed client would be charged without a proof of it"
            )
        announced = read_round(content)
        folder, here = self._admit(announced.expected_batch, announced.isolation)
        # refuse a server with entries that this ledger lacks, before anything is spent
        folder.news(held.head)
        account = NodeAccount(folder, here.process.base.settings, held.run)
        reply = update(answer_in(here.process, account, content, state), partition)
        reply[RECORD] = news_record(folder.news(held.head))
        return reply

    def _admit(
        self, expected_batch: float | None = None, isolation: str | None = None
    ) -> tuple[NodeFolder, "NodeProcess"]:
        """Check settings and rows against the client's terms and its folder.

        ``expected_batch``, ``isolation``: as announced for a round; None before.
        """
        folder = NodeFolder.open(self.terms)
        here = node_process(self.settings, self.terms, expected_batch, isolation)
        check_base(here.process.base, self.terms)
        folder.admit(here.form, here.num_examples, here.digest)
        return folder, here

    def _refuse_hopeless(self, folder: NodeFolder, here: "NodeProcess") -> None:
        """Raise OverBudgetError if a single round would spend more than the whole budget.

        That can be if the run has a noise multiplier. A budget that earlier rounds have spent is
        not refused here: the server still needs the ledger.
        """
        base, size = here.process.base, here.num_examples
        if base.settings.noise_multiplier is None:
            return
        rate = poisson_rate(base.settings, base.local, size)
        mechanism = base.method.mechanism
        entry = Entry(
            client=self.terms.partition,
            round=1,
            attempt=0,
            **takes_part(base.unit, base.local.at_rate(rate), size),
            noise_multiplier=mechanism.effective_noise_multiplier(here.blocks) / base.unit.examples,
            clip_norm=mechanism.clip_norm,
            num_examples=size,
            mechanism=mechanism.kind,
        )
        if folder.ledger.would_exceed(
            entry, self.terms.epsilon_max, self.terms.delta_max, run=entry.run
        ):
            raise OverBudgetError(
                f"a single round at sample_rate={rate:g} and "
                f"noise_multiplier={base.settings.noise_multiplier:g} passes "
                f"epsilon-max={self.terms.epsilon_max:g} at delta-max={self.terms.delta_max:g}, "
                "this client's privacy budget over all runs"
            )


@dataclass(frozen=True, eq=False)
class NodeProcess:
    """The state of a deployed client's process.

    process: as of a simulated client.
    blocks: number of blocks in every frame of the run.
    """

    process: Process
    blocks: int
    _digests: dict[bytes, str] = field(default_factory=dict)

    @property
    def form(self) -> str:
        """Digest of the public settings that determine how rows are read."""
        return form_of(self.process.base.settings, self.process.base.workload)

    @property
    def num_examples(self) -> int:
        """The client's number of examples N_k."""
        return own_size(self.process.base)

    def digest(self, key: bytes) -> str:
        """Keyed digest of all training rows, and of their persons if these are protected.

        It is computed once: the rows stay in memory.
        """
        if key not in self._digests:
            self._digests[key] = digest_of_rows(self.process.base, key=key)
        return self._digests[key]


def check_own_rows(base: Base) -> None:
    """Raise OwnDataError for rows on which a round would fail after its charge.

    Only the client's log names the row.
    """
    try:
        check_split(base.workload.train, "data")
        if workloads.own(base.settings.workload) is not None:
            check_rows(base)
    except Exception:
        log_failure()
        raise OwnDataError from None


def own_size(base: Base) -> int:
    """N_k of a deployed client, whose rows are all rows of the base."""
    assert isinstance(base.parts, OwnPart)
    return base.rows.size_of(base.parts.client)


def _rehearsal_terms(base: Base) -> ClientTerms:
    """Terms to rehearse with, before those of a round are announced."""
    sigma = base.settings.noise_multiplier or 1.0
    return ClientTerms(
        num_examples=own_size(base),
        sample_rate=base.local.sample_rate,
        noise_multiplier=sigma,
        prune_noise_multiplier=sigma,
    )


@lru_cache(maxsize=2)  # by settings and terms
def node_process(
    settings: Settings, terms: NodeConfig, expected_batch: float | None, isolation: str | None
) -> NodeProcess:
    """Own data, initial model and W_0 of a process, checked by one round on public rows.

    Everything is checked before the first charge: the rows, and that the model does not mix
    examples. Raises OwnDataError for the client's data, SettingsError for anything else: settings,
    public files, the model.
    """
    set_up(settings)
    own = OwnData(
        client=terms.partition, read=reader(terms, settings), expected_batch=expected_batch
    )
    try:
        base = agreed_level(with_level(prepare(settings, own=own)), isolation, terms)
        base = with_microbatch(base)
        check_own_rows(base)
        # the client checks the model itself: the server's plan may have skipped that
        blocks = count_blocks(base)
        with suppress(CannotDrawError):  # the carriers of a probe come with the rounds
            rehearse(base, _rehearsal_terms(base))
    except RefusalError:
        raise
    except (ValueError, OSError, ImportError) as error:
        raise SettingsError(f"{type(error).__name__}: {error}") from None
    return NodeProcess(assemble(base), blocks)
