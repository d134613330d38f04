"""Settings of privacy, each with what it needs and does not go with. Nothing here imports torch.

An epsilon that is not true for the unit, or not proved, is refused by these rules.
"""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from fedlsg.config import Setting
from fedlsg.config.isolation import Wanted
from fedlsg.config.rules import idle_unless, needs
from fedlsg.config.units import EXAMPLE, OF_PERSONS, UNITS, PersonGradient

IN_SECRET = "trust=server and whole and private"
SUM = "trust=secure|aggregate"
TRUST = (
    needs(
        "not deployed",
        "no deployed client sends an update without noise: take trust=secure",
        of="trust=server",
    ),
    needs(
        "whole",
        "it adds noise to a sum of whole updates; for noise on examples take trust=client, secure "
        "or aggregate",
        of="trust=server and private",
    ),
    needs(
        "not over_selection",
        "only the first replies would count: one client would decide whether another one counts; "
        "raise clients_per_round, which costs what the ledger says",
        of=IN_SECRET,
    ),
    needs(
        "not trace",
        "who is there next would depend on who took part, which is a secret of the server; give "
        "availability as a share",
        of=IN_SECRET,
    ),
    needs(
        "not client_timeout",
        "a client that slows the machine down would decide whether others reply in time, and so "
        "count; leave it out: round_timeout ends the run instead, with nothing released of that "
        "round",
        of=IN_SECRET,
    ),
    needs(
        "not grid_from_noise",
        "that grid comes from the client's noise, and here it adds none: choose float32, "
        "bfloat16 or int8",
        of=IN_SECRET,
    ),
    needs(
        "min_survivors<=1",
        "whether a round counts would show how many clients were drawn; leave it out (a round "
        "without any client is noise alone)",
        of=IN_SECRET,
    ),
    needs(
        "local_steps=1",
        "the noise of one step is shared: take local_steps=1, or unit=client",
        of=f"{SUM} and of_examples",
    ),
    needs(
        "clients_per_round>1",
        "it adds at least two clients: raise clients, or take trust=client",
        of="trust=secure",
    ),
    needs(
        "not away",
        "each sum is planned for exactly clients_per_round={clients_per_round} clients: leave "
        "availability out; dropout, speed and deadline are possible",
        of="trust=secure",
    ),
    needs(
        "not over_selection",
        "each sum is planned for exactly clients_per_round={clients_per_round} clients: leave it "
        "out; dropout, speed and deadline are possible",
        of="trust=secure",
    ),
    needs(
        "codec=float32",
        "it sends integers on a grid of its own, and codec={codec} would not be used: leave it out",
        of="trust=secure",
    ),
    needs(
        "not prunes_by_data",
        "it prunes by sums that are not planned for: take trust=client",
        of="trust=secure",
    ),
    needs(
        "mechanism=dp and indices=derived",
        "it sums noisy integers at derived positions (method {method!r})",
        of="trust=secure",
    ),
    needs(
        "exact",
        "each payload is rounded before the sum, and rounding a large value takes off the client's "
        "share of the noise",
        of="trust=aggregate",
    ),
    needs("not chooses", "a sum adds position by position: take trust=client", of=SUM),
)
ADAPTIVE = needs("clip_quantile", "it is a setting of an adaptive clip: give clip_quantile, too")
PERSONS = idle_unless("persons", "it is of persons: give unit=COLUMN, or leave it out")
NOISE = needs("noise", "leave this setting out, or choose method dpsgd, or mechanism=dp")
OWN = (
    NOISE,
    needs("trust=client", "under trust={trust} the clients share their noise"),
    needs("not noise_multiplier", "noise is calibrated to each: leave it out"),
)


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Privacy"""

    epsilon: Annotated[
        float | None,
        Setting(
            "Privacy budget of each client; calibrates the noise.",
            above=0,
            below=inf,
            why="smaller is more private; a run without privacy has method=sgd",
            fallback=8.0,
            rules=(NOISE,),
        ),
    ] = None
    client_epsilons: Annotated[
        str | None,
        Setting(
            "Own budgets of clients: 'north=1, south=4', a column of train, or a CSV file.",
            rules=OWN,
        ),
    ] = None
    noise_multiplier: Annotated[
        float | None,
        Setting(
            "Noise multiplier sigma (deviation of the noise over clip_norm), instead of epsilon.",
            above=0,
            below=inf,
            rules=(NOISE,),
        ),
    ] = None
    delta: Annotated[
        float | None,
        Setting(
            "delta of (epsilon, delta).",
            above=0,
            below=1,
            fallback=1e-5,
            rules=(idle_unless("noise", "no noise is added: leave delta out"),),
        ),
    ] = None
    client_deltas: Annotated[
        str | None,
        Setting("Own deltas of clients, in the forms of client_epsilons.", rules=OWN),
    ] = None
    unit: Annotated[
        str,
        Setting(
            "What epsilon protects: one example, a client with all of its data, or a person: the "
            "column of the training data that says whose each row is.",
            choices=UNITS,
            others="a column",
            rules=OF_PERSONS,
        ),
    ] = EXAMPLE.name
    person_rows: Annotated[
        int,
        Setting(
            "Rows of a person that count in a step, at most, drawn at random; 0: all.",
            at_least=0,
            rules=(PERSONS,),
        ),
    ] = 0
    person_gradient: Annotated[
        PersonGradient,
        Setting("What of a person's gradients is clipped.", rules=(PERSONS,)),
    ] = "mean"
    trust: Annotated[
        Literal["client", "secure", "aggregate", "server"],
        Setting(
            "Clients add all noise, or a share in a real or assumed sum; or the server.",
            rules=TRUST,
        ),
    ] = "client"
    clip_quantile: Annotated[
        float | None,
        Setting(
            "Quantile of clients' norms that the clip norm follows.",
            "share",
            above=0,
            below=1,
            rules=(
                needs("whole and trust=server", "it counts clients at a trusted server"),
                needs("clip=joint", "it moves one clip norm"),
            ),
        ),
    ] = None
    clip_learning_rate: Annotated[
        float | None,
        Setting(
            "Learning rate of log C under clip_quantile.", above=0, below=inf, rules=(ADAPTIVE,)
        ),
    ] = None
    clip_count_noise: Annotated[
        float | None,
        Setting(
            "Noise in the count of clip_quantile; default a 20th of a round's, or z.",
            "clients",
            above=0,
            below=inf,
            rules=(ADAPTIVE,),
        ),
    ] = None
    min_survivors: Annotated[
        int | None,
        Setting(
            "Clients that a round needs; less the colluders, they make a sum's noise.",
            "clients",
            at_least=1,
        ),
    ] = None
    colluders: Annotated[
        int | None,
        Setting(
            "Clients of a secure sum that may read it together; 1 or more.",
            "clients",
            at_least=0,
            rules=(
                needs(
                    "trust=secure",
                    "it is a setting of secure sums alone: leave it out",
                    of="colluders>=0",
                ),
            ),
        ),
    ] = None
    reproducible: Annotated[
        bool, Setting("Seed the noise too, and compute clients one by one: NOT PRIVATE.")
    ] = False
    isolation: Annotated[
        Wanted,
        Setting(
            "How passes run code of yours: one example in each, or a batch that a check compared.",
            rules=(idle_unless("of_examples and mechanism=dp|clip-only", of="isolation!=auto"),),
        ),
    ] = "auto"
