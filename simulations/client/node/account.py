"""A deployed client's account: one ledger over all runs, under the client's own budget and the run's."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedlsg.privacy import Entry
from simulations.client.node.conditions import check_mechanism
from simulations.client.node.folder import Budget, NodeFolder
from simulations.grids.refusals import TermsError
from simulations.rundir.rundir import RunDir
from simulations.settings.run import Resolved


@dataclass(frozen=True)
class NodeAccount:
    """The account of a run called ``name``. ``settings``: of the run, resolved."""

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

    def check(self, entry: Entry) -> None:
        """Nothing: check and charge are one step, under the folder's lock."""

    def charge(self, entry: Entry) -> None:
        """Charge the entry if it is private, secret, and within every budget.

        Raises TermsError, OverBudgetError or LedgerError; nothing is charged then.
        """
        check_mechanism(entry.mechanism, self.settings.method)
        if entry.reproducible:
            raise TermsError("reproducible noise: a deployed client never draws its noise from a known seed")
        before = {e.num_examples for e in self.folder.ledger.entries if e.run == self.name}
        if before - {entry.num_examples}:
            raise TermsError(
                f"this client had another number of training rows earlier in the run {self.name}: N_k is fixed within "
                "a run; start a new one"
            )
        self.folder.charge(entry, self.budgets)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What the client's terms allow over all runs, and what the run's settings allow over this one."""
        s, terms = self.settings, self.folder.terms
        own = Budget(epsilon=terms.epsilon_max, delta=terms.delta_max)
        if s.epsilon is None:
            return (own,)
        return own, Budget(epsilon=s.epsilon, delta=s.delta, run=self.name)

    def keep_truth(self, round: int, drawn: Sequence[Tensor]) -> None:
        """Nothing: a deployed client writes no private row."""
