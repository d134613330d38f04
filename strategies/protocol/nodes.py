"""The roster of a federation: which Flower node is which client.

Node ids are random, and a run numbers its clients by partition. The server sends each node one
query for its identity, and another one when the node returns. In a simulation all nodes are there
from the start; if the clients of a process share its code and data, one of them is asked. A
deployed node may stop, and return under its own id (with a fixed key) or under another.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from statistics import median_low

from flwr.app import Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedlsg.state import RoundPlan
from fedlsg.strategies.protocol.expectations import (
    MAX_DECLARED_EXAMPLES,
    check_reply,
    reason_of,
    shortened,
)
from fedlsg.strategies.protocol.proofs import CODE, News, check_same_code, code_record, read_news
from fedlsg.strategies.protocol.round_report import NO_REPLY
from fedlsg.strategies.protocol.wire import REFUSED_RUN, read_identity, read_most

CONNECT_SECONDS = 120.0
"""Time for nodes to connect and to reply to a query."""
REGISTER_SECONDS = 5.0
"""Time for Flower's simulation to register its next node."""
QUIET_SECONDS = 3.0
"""Time after which the log says that nodes are missing."""
ASK_AGAIN_SECONDS = 2.0
"""Pause between two queries to deployed nodes."""
CLOCK_SECONDS = 5.0
"""Clocks that differ by more are reported."""

MAX_DOUBLINGS = 10
"""The wait of a node that was refused is at most 2 to this power rounds."""
MAX_QUERIES = 3
"""Queries to a simulated client that replies with errors: all of them run the same code."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The declaration of a node.

    node: its id.
    partition: which client it is.
    num_examples: N_k.
    news: the lines of its ledger that the server does not have; None in a simulation.
    budget: (epsilon, delta) that it may spend in a run; 0: as the run says.
    most: (epsilon, delta) that its data may spend over all runs; None without such a limit.
    """

    node: int
    partition: int
    num_examples: int
    news: News | None
    budget: tuple[float, float] = (0.0, 0.0)
    most: tuple[float, float] | None = None


class SimulatedGrid(Grid):
    """A grid of simulated clients, whose node ids are in the order of partitions."""

    @abstractmethod
    def representatives(self) -> Sequence[int]:
        """Clients that reply for all, one for each process that there is."""

    @abstractmethod
    def expect(self, plan: RoundPlan) -> None:
        """Prepare for messages that ask for a payload of this round."""

    @abstractmethod
    def end(self) -> None:
        """End the run: payloads that were asked for and did not come back are charged."""


class RefusedRunError(RuntimeError):
    """A node refuses the settings of this run, whenever it is asked."""


class Roster:
    """The node of each client of a run.

    Without ``declared`` each node declares its N_k and its budget once; neither can change
    afterwards. A deployed node that was refused, or did not reply, waits twice as many rounds each
    time until it is asked again.

    timeout: seconds for a reply to the first query.
    declared: N_k of every client, if the server knows them in advance, as in a simulation.
    accept: may refuse a node by raising ValueError.
    most_examples: largest N_k that a node may declare.
    sizes: N_k by client.
    budgets: (epsilon, delta) for one run by client; 0: as the run says.
    refused: by node id, why a node is no client.
    """

    def __init__(
        self,
        timeout: float,
        *,
        declared: Sequence[int] | None = None,
        accept: Callable[[Identity], None] = lambda identity: None,
        most_examples: int = MAX_DECLARED_EXAMPLES,
    ) -> None:
        self.accept, self.most_examples = accept, most_examples
        self.sizes: dict[int, int] = {}
        self.budgets: dict[int, tuple[float, float]] = {}
        self.refused: dict[int, str] = {}
        self._declared, self._deployed = declared or (), declared is None
        # of all clients, if one of each process was asked: such nodes never leave
        self._nodes: Sequence[int] = ()
        self._clients = 0
        self._patience = max(timeout, CONNECT_SECONDS)  # the first message also starts the clients
        self._node_of: dict[int, int] = {}
        self._asked, self._returned = set[int](), set[int]()
        self._settled = set[int]()
        """Nodes that refuse the run's settings, whenever they are asked."""
        self._refreshes = 0
        self._failures: dict[int, tuple[int, int]] = {}
        """By refused node: how often it was refused, and the next refresh at which it is asked."""

    @property
    def complete(self) -> bool:
        """Whether ``gather`` has ended; clients that have left since are included."""
        return bool(self._clients)

    def node(self, partition: int) -> int | None:
        """The client's node; None while it has none."""
        return self._nodes[partition] if self._nodes else self._node_of.get(partition)

    def client_of(self, node: int) -> int | None:
        """The client of a node; None while it is no client yet."""
        if node in self._nodes:
            return self._nodes.index(node)
        for partition, known_node in self._node_of.items():
            if known_node == node:
                return partition
        return None

    def returned(self, node: int) -> None:
        """Note that the node has replied, or is here again."""
        if (partition := self.client_of(node)) is not None:
            self._returned.add(partition)

    def take_returned(self) -> Collection[int]:
        """The clients that have come back since the last call."""
        back, self._returned = self._returned, set()
        return back

    def gather(self, grid: Grid, clients: int) -> Sequence[int]:
        """Find every client's node before training; returns N_k of each.

        A node that replies with an error gets another query: in a deployment for two minutes, so
        that its operator can change its settings. Queries end at once if every node refuses the
        run's own settings. Nodes beyond the run's clients stay idle.

        Then a deployment of three clients or more continues without the missing clients if these
        are less than half, so that no node can keep a run from starting. The run is planned with
        the median N_k for such a client, which may join later if it declares this number.

        Raises RuntimeError, with each node's reason, if more clients are missing.
        """
        deadline = time.monotonic() + (CONNECT_SECONDS if self._deployed else 0.0)
        nodes = wait_for_nodes(grid, clients)
        if isinstance(grid, SimulatedGrid) and len(few := grid.representatives()) < clients:
            asked = [nodes[client] for client in few]
            self._ask(grid, asked, clients, self._patience)
            if self._asked.issuperset(asked) and not self.refused:
                self._nodes, self._clients = nodes[:clients], clients
                self._returned.clear()
                return self._declared
        attempts = 0
        while True:
            self._ask(
                grid, [node for node in nodes if node not in self._asked], clients, self._patience
            )
            missing = sorted(set(range(clients)) - self._node_of.keys())
            attempts += 1
            settled = bool(nodes) and self._settled.issuperset(nodes)
            late = attempts >= MAX_QUERIES and time.monotonic() > deadline
            if not missing or settled or late:
                break
            if not self.refused and not self._deployed:
                break
            time.sleep(ASK_AGAIN_SECONDS if self._deployed else 0.0)
            nodes = list(grid.get_node_ids())
        if missing and not (self._deployed and clients > 2 * len(missing)):
            raise RuntimeError(self._missing(missing, clients))
        if missing:
            log(
                WARNING,
                "the run goes on without clients %s: %s",
                missing,
                self._missing(missing, clients),
            )
            self.sizes |= dict.fromkeys(missing, median_low(self.sizes.values()))
            self.budgets |= dict.fromkeys(missing, (0.0, 0.0))
        self._clients = clients
        if self._deployed:
            return [self.sizes[partition] for partition in range(clients)]
        # a simulated client that hangs in training replies to its query all the same
        self._returned.clear()
        return self._declared

    def refresh(self, grid: Grid) -> None:
        """Forget nodes that have left, and query those that are new or have returned."""
        if self._nodes:
            return
        nodes = set(grid.get_node_ids())
        for partition, node in list(self._node_of.items()):
            if node not in nodes:
                self.forget(partition)
        self._asked &= nodes
        self._refreshes += 1
        wait = {node for node, (_, due) in self._failures.items() if due > self._refreshes}
        self._ask(grid, sorted(nodes - self._asked - wait), self._clients, CONNECT_SECONDS)

    def wait(self, grid: Grid, clients: Sequence[int]) -> None:
        """Refresh until one of the clients has a node, for two minutes at most."""
        deadline = time.monotonic() + CONNECT_SECONDS
        self.refresh(grid)
        while all(self.node(client) is None for client in clients) and time.monotonic() < deadline:
            time.sleep(ASK_AGAIN_SECONDS)
            self.refresh(grid)

    def forget(self, partition: int) -> None:
        """Forget a client's node that left or restarted; it gets another query when it is here."""
        node = self._node_of.pop(partition, None)
        if node is not None:
            self._asked.discard(node)

    def ask_again(self, grid: Grid) -> Collection[int]:
        """Query every known node for the end of its ledger; returns clients that did not reply."""
        for partition in list(self._node_of):
            self.forget(partition)
        self.refresh(grid)
        return self.sizes.keys() - self._node_of.keys()

    def _ask(self, grid: Grid, nodes: Sequence[int], clients: int, patience: float) -> None:
        if not nodes:
            return
        queries = [
            Message(
                RecordDict({CODE: code_record(local=not self._deployed)}), node, MessageType.QUERY
            )
            for node in nodes
        ]
        asked = time.time()
        replies = list(grid.send_and_receive(queries, timeout=patience))
        waiting = {query.metadata.message_id: query.metadata.dst_node_id for query in queries}
        for reply in replies:
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            self._settled.discard(node)
            before = self.refused.pop(node, None)
            if self._deployed:
                warn_of_clock(node, reply.metadata.created_at, asked, time.time())
            try:
                self._enter(node, reply, clients)
                self._failures.pop(node, None)
            except Exception as error:  # no reply of a node may end the run
                if isinstance(error, RefusedRunError):
                    self._settled.add(node)
                self._refuse(node, reason_of(error), before)
        for node in waiting.values() if self._deployed else ():
            self._settled.discard(node)
            self._refuse(node, NO_REPLY, self.refused.get(node))

    def _refuse(self, node: int, why: str, before: str | None) -> None:
        """Note a refused node. ``before``: the last reason; the log has the same reason once."""
        failed, due = self._failures.get(node, (0, 0))
        if due <= self._refreshes:  # queries of one refresh count once
            self._failures[node] = failed + 1, self._refreshes + 2 ** min(failed, MAX_DOUBLINGS)
        self.refused[node] = why
        if why != before:
            log(WARNING, "node %s cannot take part: %s", node, why)

    def _enter(self, node: int, reply: Message, clients: int) -> None:
        """Enter a node as a client by its reply. Raises for a reply that is not accepted."""
        if reply.has_error():
            kind = RefusedRunError if reply.error.code == REFUSED_RUN else RuntimeError
            raise kind(shortened(reply.error.reason))
        check_reply(reply)
        partition, num_examples, budget = read_identity(reply.content)
        self._asked.add(node)
        if not 0 <= partition < clients:
            if self._deployed:
                self.refused[node] = (
                    f"it is client {partition}, and the run has clients 0 to {clients - 1}"
                )
            return
        try:
            check_same_code(reply.content, f"client {partition}", receiver="the server")
            self._check(node, partition, num_examples, budget)
            self.accept(
                Identity(
                    node=node,
                    partition=partition,
                    num_examples=num_examples,
                    news=read_news(reply.content),
                    budget=budget,
                    most=read_most(reply.content),
                )
            )
        except Exception:
            self._asked.discard(node)
            raise
        self.sizes.setdefault(partition, num_examples)
        self.budgets.setdefault(partition, budget)
        self._node_of[partition] = node
        self._returned.add(partition)

    def _check(
        self, node: int, partition: int, num_examples: int, budget: tuple[float, float]
    ) -> None:
        """Raise RuntimeError for a client of another node, or with other numbers than before."""
        other = self._node_of.get(partition)
        if other is not None and other != node:
            raise RuntimeError(
                f"nodes {other} and {node} both declare that they are client {partition}"
            )
        if num_examples < 1:
            raise RuntimeError(f"client {partition} holds no examples")
        delta = budget[1]
        most = min(MAX_DECLARED_EXAMPLES, math.ceil(1 / delta) - 1) if delta else self.most_examples
        if num_examples > most:
            raise RuntimeError(
                f"client {partition} declares {num_examples:,} examples, the run takes "
                f"{most:,} at most: delta must be below 1 / N_k; lower delta if the "
                "number is right"
            )
        known = self.sizes.get(partition) if self._deployed else self._declared[partition]
        if known is not None and known != num_examples:
            raise RuntimeError(
                f"client {partition} holds {num_examples} examples, the run declares {known}: "
                "data, partition settings or seed differ"
            )
        planned = self.budgets.get(partition, budget)
        for name, now, before in zip(("epsilon", "delta"), budget, planned, strict=True):
            if now != before:
                raise RuntimeError(
                    f"client {partition} says that it may spend {name} {now:g} (0: what the run "
                    f"says), and the run is planned with {before:g}: set {name}={before:g} in its "
                    "node config (0: leave it out), or start a new run"
                )

    def _missing(self, missing: Iterable[int], clients: int) -> str:
        """Why clients are missing, and what to do."""
        nodes_of: dict[str, list[int]] = {}
        for node, reason in sorted(self.refused.items()):
            nodes_of.setdefault(reason, []).append(node)
        why = "; ".join(
            f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}: {reason}"
            for reason, nodes in nodes_of.items()
        )
        if self._settled and self._settled == self.refused.keys():
            count = len(self._settled)
            which = "the node refuses" if count == 1 else f"all {count} nodes refuse"
            return f"{which} this run, and nothing was spent: {why}"
        return (
            f"no node replied as one of the clients {list(missing)}: give the federation {clients} "
            f"nodes with the partition-ids 0 to {clients - 1}, or more time{'; ' * bool(why)}{why}"
        )


def warn_of_clock(node: int, written: float, asked: float, now: float) -> None:
    """Log a warning about the clock of a node, by the times of its reply.

    written: by the node's clock; it should be between ``asked`` and ``now`` of the server's clock.

    Flower ends a node with a wrong clock when it signs a request, with status 0 and no reason.
    """
    wrong = written - now if written > now else min(written - asked, 0.0)
    if abs(wrong) > CLOCK_SECONDS:
        log(
            WARNING,
            "the clock of node %s is %.0f s %s the server's: Flower refuses the key of a node that "
            "is more than 5 s ahead or 305 s behind, and its SuperNode then ends with status 0; "
            "set both clocks (NTP)",
            node,
            abs(wrong),
            "ahead of" if wrong > 0 else "behind",
        )


def wait_for_nodes(grid: Grid, count: int, *, fixed: bool = False) -> Sequence[int]:
    """Node ids, as soon as there are ``count``. The log says whom it waits for, and how long.

    fixed: whether the federation has a fixed number of nodes, as Flower's simulation: then it
        waits only while it registers them.
    Raises RuntimeError after ``CONNECT_SECONDS``.
    """
    began = time.monotonic()
    seen, logged = 0, -1
    while True:
        connected = grid.get_node_ids()
        # a simulation has a range, which may be long
        nodes = connected if isinstance(connected, range) else list(connected)
        if len(nodes) >= count:
            return nodes
        if fixed and len(nodes) != seen:
            seen, began = len(nodes), time.monotonic()
        waited = time.monotonic() - began
        if waited > (REGISTER_SECONDS if fixed else CONNECT_SECONDS):
            raise RuntimeError(
                f"the run has {count} clients, the federation only {len(nodes)} nodes; "
                f'for a simulation give flwr run --federation-config "num-supernodes={count}"'
            )
        if not fixed and waited > QUIET_SECONDS and len(nodes) != logged:
            logged = len(nodes)
            log(
                INFO,
                "%d of %d clients are there: waiting for the others, for another %.0f s at most",
                logged,
                count,
                CONNECT_SECONDS - waited,
            )
        time.sleep(0.1)
