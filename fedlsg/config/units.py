"""Units of privacy, which say what an epsilon protects: one object for each, found by its name.

A new unit is one ``Unit`` in ``UNITS``. The setting, the plan of the noise, the ledger, the client
and server steps, the audit, nodes and reports ask it: ask for its fields, not for its name. Any
other word is the column that says whose a row is: its unit is a person (``unit_named``). Conditions
of rules, such as ``not chooses``, are ``FACTS`` of ``rule_checker``. Nothing here imports torch.

Symbols: q the Poisson rate of an example, C the clip norm, sigma noise over C, k examples of one
client.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from fedlsg.config.rules import Rule, idle_unless, needs

PersonGradient = Literal["mean", "sum"]
"""Whether the mean or the sum of the gradients of a person's rows is clipped."""


def rules_of_whole(name: str) -> tuple[Rule, ...]:
    """Rules of every unit that is a whole client."""
    of = f"unit={name} and private"
    return (
        needs(
            "trust=server|secure",
            "it hides a client in a real sum: take trust=server (simulation: the server is trusted "
            "with updates that have no noise, and adds it) or trust=secure (clients add shares of "
            "it in a secure sum)",
            of=of,
        ),
        needs(
            "batch_size",
            "with sample_rate={sample_rate} a client's expected batch would depend on which other "
            "clients there are; give batch_size, a public number of examples",
            of=of,
        ),
        needs(
            "not epochs",
            "it counts passes over the data, whose number of rows is secret: give rounds",
            of=of,
        ),
        needs(
            "not weighting",
            "a client's factor follows from its size, which is secret: leave weighting out",
            of=of,
        ),
        needs(
            "not prunes_by_data",
            "saliencies are of single examples: take unit=example, or no pruning",
            of=of,
        ),
        needs(
            "not personal",
            f"a part of each update stays with its client, and unit={name} hides an update in the "
            "sum of all: take unit=example",
            of=of,
        ),
        needs(
            "not embeds",
            f"the embedding of each example is clipped apart from what it leaves, and unit={name} "
            "clips whole updates: take unit=example, or biased=true",
            of=of,
        ),
        needs(
            "not factors",
            "updates are added up, and factors do not add up: take unit=example",
            of=of,
        ),
        *(
            needs(
                condition,
                "a client would act on a round that it is not charged for: take unit=example",
                of=of,
            )
            for condition in ("not chooses", "not memory")
        ),
        idle_unless(
            "private", "mechanism={mechanism} has no epsilon: leave unit out", of=f"unit={name}"
        ),
    )


OF_PERSONS = (
    needs(
        "sampling=poisson",
        "a Poisson batch draws persons, and shuffled ones deal single rows: leave sampling out",
        of="unit!=example and persons and private",
    ),
    needs(
        "not holdout",
        "rows are held out one by one, so the test split would have rows of persons that are "
        "trained on: give test=, with rows of other persons",
        of="unit!=example and persons and private",
    ),
    idle_unless(
        "private",
        "mechanism={mechanism} has no epsilon: leave unit out",
        of="unit!=example and persons",
    ),
)
"""Rules of every unit that is a person. Its column has any name, so the setting takes them."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit of privacy: an example, several examples, a person or a whole client.

    name: in settings and ledgers; of a person, the column whose values say whose a row is.
    protects: what an epsilon protects, in words after "epsilon of".
    meaning: what an epsilon means, in sentences.
    level: a word that reports add; "" for the unit of one example.
    own_rules: each with ``of="unit=NAME"`` or more.
    whole: whether it is a client with all of its data. Updates are then clipped whole, and get
        noise from their client.
    persons: whether it is a person. A batch then draws persons, and each one's gradient is clipped
        once (``training.persons``): N_k and q count persons, and all else is as for one example.
    examples: k, of a unit that is any k examples of one client (none of ``UNITS`` with k > 1). A
        batch has one of them or more with probability 1 - (1 - q)^k, and they move the sum by k C
        at most. The Gaussian mechanism with that rate and distance dominates (Choquette-Choo et al.
        2024, mixtures of Gaussians), so a ledger is charged with this rate, and with sigma / k.
    at_server: whether noise is added to the sum of whole updates, by a server that is trusted with
        updates without noise.
    sample_rate: the probability of each client to be in a round, independently of the others, by
        draws that only the server knows; 1.0 otherwise.
    """

    name: str
    protects: str
    meaning: str
    level: str = ""
    own_rules: tuple[Rule, ...] = ()
    whole: bool = False
    persons: bool = False
    examples: int = 1
    at_server: bool = False
    sample_rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1 or self.examples < 1 or (self.whole and self.examples > 1):
            raise ValueError(
                f"expected 0 < {self.sample_rate=} <= 1, and {self.examples=} >= 1 (1 of whole "
                "clients)"
            )
        if not self.at_server and self.sample_rate < 1:
            raise ValueError(
                f"expected sample_rate=1.0, got {self.sample_rate}: a server that sees who takes "
                "part is not fooled by the draw, so no amplification is claimed"
            )

    @property
    def single(self) -> bool:
        """Whether it is one example: shuffled batches and most attacks need that."""
        return not self.whole and not self.persons and self.examples == 1

    @property
    def counted(self) -> str:
        """What N_k counts, in words."""
        return f"persons ({self.name})" if self.persons else "examples"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that hold under its name; of persons, see ``OF_PERSONS``."""
        if self.whole:
            return (*rules_of_whole(self.name), *self.own_rules)
        if self.examples == 1:
            return self.own_rules
        of, why = f"unit={self.name}", "it is proved for single examples: take unit=example"
        conditions = ("trust!=secure", "sampling=poisson", "not prunes_by_data")
        return (*self.own_rules, *(needs(condition, why, of=of) for condition in conditions))

    def steps(self, local_steps: int) -> int:
        """Releases of a client in a round."""
        return 1 if self.whole else local_steps

    def rate(self, sample_rate: float) -> float:
        """The probability that a unit is in a release, rounded up; ``sample_rate``: q."""
        if self.whole:
            return self.sample_rate
        if self.examples == 1 or sample_rate == 1:
            return sample_rate
        return min(1.0, -math.expm1(self.examples * math.log1p(-sample_rate)) * (1 + 1e-12))

    def population(self, sizes: Sequence[int]) -> int:
        """The number of clients for whole units, else N_k of the largest client; ``sizes``: N_k.

        Delta must be below one over it: a larger one would allow to publish a unit.
        """
        return len(sizes) if self.whole else max(sizes)


EXAMPLE = Unit(
    name="example",
    protects="one example",
    meaning="Epsilon protects one example of one client (adjacency: add or remove one example). "
    "Each client composes its own steps. The number is the largest over clients and seeds; "
    "it is never a sum over clients. Whatever an observer concludes is at most e^epsilon "
    "times as likely as without the example, except with probability delta.",
)
CLIENT = Unit(
    name="client",
    protects="a client with all of its data",
    level="client level",
    whole=True,
    meaning="With unit=client, epsilon protects one client with all of its data: with its data or "
    "without, whatever an observer concludes is at most e^epsilon times as likely, except "
    "with probability delta. Epsilons of the two units are not comparable. One example of a "
    "client that stays can change the clipped update by up to 2 C: for it, count with half of the "
    "noise multiplier.",
)
UNITS = {unit.name: unit for unit in (EXAMPLE, CLIENT)}
"""The named units; units of persons are made by ``unit_named``."""


LONGEST_NAME = 100
"""Most characters of a column's name, which ledgers keep."""


@cache  # a unit is frozen
def unit_named(name: str) -> Unit:
    """The unit of a name: one of ``UNITS``, or the person whose rows have one value in this column.

    Raises ValueError for anything that is not a name of a column.
    """
    if type(name) is not str or not name.strip() or len(name) > LONGEST_NAME:
        raise ValueError(
            f"expected unit={name!r} among {', '.join(UNITS)}, or the name of a column"
        )
    if name in UNITS:
        return UNITS[name]
    return Unit(
        name=name,
        protects=f"one {name} with all rows",
        level=f"{name} level",
        persons=True,
        meaning=f"With unit={name}, epsilon protects one {name} with all of their rows, at one "
        f"client (adjacency: add or remove one {name}). A row without a {name} is one of its own. "
        "Each client composes its own steps; the number is the largest over clients and seeds. "
        "Whatever an observer concludes is at most e^epsilon times as likely as without the "
        f"{name}, except with probability delta. Epsilons of different units are not comparable.",
    )


def unit_in(values: Mapping[str, Any]) -> Unit:
    """The unit of settings, or of a summary: an example if they name none.

    Raises ValueError as ``unit_named``.
    """
    return unit_named(str(values.get("unit") or EXAMPLE.name))
