"""The public terms of one attempt at a secure sum, and how it ends without a sum.

All parties derive graph and thresholds from the terms.
"""

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property

from fedlsg.secure_sum.graph import GraphPlan, harary_graph, plan_graph, public_order

LEAST_BITS, MOST_BITS = 8, 64
MOST_CLIENTS, MOST_VALUES = 10_000, 2**30
_FIXED = struct.Struct("<32sQQIIIIB")
_LABEL = b"fedlsg secure sum, version 2\0"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What server and clients agree on before an attempt.

    ``run``: 32 bytes that name the run; ``round`` and ``attempt``: an attempt never repeats within a run;
    ``clients``: the selected clients, ascending (K numbers below 2^32); ``min_survivors``: m, the clients that a sum
    has at least; ``colluders``: t; ``length``: values of a vector; ``bits``: b, sums are modulo 2^b, 8 to 64.

    Guarantee: every key of an attempt depends on all of these, through ``digest``. Clients that hold different terms
    cannot open each other's shares.
    Raises ValueError for terms that are out of range or that no graph fits (see ``plan_graph``).
    """

    run: bytes
    round: int
    attempt: int
    clients: tuple[int, ...]
    min_survivors: int
    colluders: int
    length: int
    bits: int

    def __post_init__(self) -> None:
        if len(self.run) != 32:
            raise ValueError(f"expected 32 bytes that name the run, got {len(self.run)}")
        if not (0 <= self.round < 2**64 and 0 <= self.attempt < 2**64):
            raise ValueError(f"expected {self.round=} and {self.attempt=} from 0 to 2^64 - 1")
        if not LEAST_BITS <= self.bits <= MOST_BITS:
            raise ValueError(f"expected {LEAST_BITS} <= {self.bits=} <= {MOST_BITS}")
        if not 1 <= self.length <= MOST_VALUES:
            raise ValueError(f"expected 1 <= {self.length=} <= 2^30")
        if len(self.clients) > MOST_CLIENTS or tuple(sorted(set(self.clients))) != self.clients:
            raise ValueError(f"expected at most {MOST_CLIENTS} clients, ascending without repeats")
        if self.clients and not 0 <= self.clients[0] <= self.clients[-1] < 2**32:
            raise ValueError("expected clients from 0 to 2^32 - 1")
        self.plan  # noqa: B018 - raises for terms that no graph fits

    @cached_property
    def plan(self) -> GraphPlan:
        """Degree and threshold."""
        return plan_graph(len(self.clients), min_survivors=self.min_survivors, colluders=self.colluders)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all terms, 32 bytes."""
        numbers = (self.round, self.attempt, len(self.clients), self.min_survivors, self.colluders, self.length)
        fixed = _FIXED.pack(self.run, *numbers, self.bits)
        return hashlib.sha256(_LABEL + fixed + b"".join(c.to_bytes(4, "little") for c in self.clients)).digest()

    @cached_property
    def neighbours(self) -> dict[int, tuple[int, ...]]:
        """The neighbours of each client, ascending, without the client itself."""
        return harary_graph(public_order(self.clients, self.digest), self.plan.degree)

    @cached_property
    def points(self) -> dict[int, int]:
        """Where the share of each client is on a polynomial: its place among the clients, from 1."""
        return {client: place for place, client in enumerate(self.clients, 1)}

    def holders(self, client: int) -> tuple[int, ...]:
        """The closed neighbourhood of a client, ascending: those that hold a share of its secrets."""
        return tuple(sorted((client, *self.neighbours[client])))


class SecureSumError(ValueError):
    """A message or a request that the protocol forbids. The text names what was expected and what was found.

    It quotes no secret: it may be sent to the other side and written to a log.
    """


class WrongSharesError(SecureSumError):
    """No secret that ``owner`` announced fits its shares: the owner dealt wrong ones, or several holders lie."""

    def __init__(self, what: str, owner: int) -> None:
        kept = "public key" if what == "mask key" else "commitment"
        super().__init__(f"{what} of client {owner}: the shares do not fit its {kept}")
        self.owner = owner


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """An attempt that ended without a sum. No input, and no sum of a part of the inputs, was revealed.

    ``stage``: keys, shares, masked, agree or unmask; ``alive``: clients whose message of that stage was accepted;
    ``owner``: the client whose shares, more than h, fit no secret that it announced.
    """

    stage: str
    reason: str
    alive: int
    owner: int | None = None

    def __str__(self) -> str:
        return f"secure sum given up in stage {self.stage}: {self.reason}"
