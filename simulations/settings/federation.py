"""The settings of clients, rounds and local training, and of simulated time.

Each is declared once: its sentence for the documents, its unit, its range, and rules about other
settings. ``needs`` refuses a setting unless a condition holds. ``idle_unless`` refuses it where it
would change nothing. The texts of rules say what to do. Nothing here imports torch.
"""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from fedlsg.config import Setting
from fedlsg.config.partitions import ANY, SCHEMES
from fedlsg.config.rules import idle_unless, needs
from fedlsg.config.selection import SELECTIONS

ONE_STEP = (
    "with one local step a client sends its gradient: leave it out, or give local_steps=2 or more"
)
LIKE_TEST = "it evaluates clients on parts of the public test split that are like their data"
ON_TEST_PARTS = (
    needs(
        "not deployed",
        f"{LIKE_TEST}, and nobody knows the class mix of clients with data of their own",
    ),
    needs(
        "not holdout",
        f"{LIKE_TEST}, and holdout tests on training rows, which are private: write two files of "
        "the table and give the second as test=, with the column of the clients in both (its rows "
        "are then public, by your word)",
    ),
)
"""Rules of settings by which each client is evaluated by itself."""
OF_CLASSES = (
    needs(
        ANY,
        f"{LIKE_TEST}, and every test row must be in one of the parts",
    ),
    needs("classes", f"{LIKE_TEST}, by their classes"),
)
"""Further rules, for parameters that stay with a client: no model can be tested on all rows."""
SHUFFLED = (
    needs(
        "batch_size",
        "it cuts batches of a fixed size, by which the sums are divided, and "
        "sample_rate={sample_rate} is a chance: give batch_size instead, a public number of "
        "examples",
        of="sampling=shuffle",
    ),
    needs(
        "unit=example",
        "whole clients are hidden, whatever their batches are, and nothing is accounted by "
        "batches: take sampling=poisson",
        of="sampling=shuffle",
    ),
    needs(
        "trust!=secure",
        "the bound on discrete noise is planned for Poisson batches: take trust=client, or "
        "sampling=poisson",
        of="sampling=shuffle",
    ),
)
"""Rules that refuse shuffled batches where their epsilon would be wrong, or is not proved."""
ONLY_SIMULATED = (
    needs(
        "not deployed",
        "it simulates what a deployment has of its own: leave it out, or run a simulation",
    ),
)
"""For settings of simulated time."""
NO_LATE_REPLIES = needs(
    "not memory",
    "it throws away replies that the clients' memory of what was not sent counts as received: "
    "leave it out",
)
"""For settings by which replies are not used."""


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Federation and local training"""

    rounds: Annotated[
        int | None,
        Setting(
            "Server rounds, or auto.",
            "rounds",
            why="leave it out, and a rule chooses",
            at_least=1,
            at_most=10**8,
            fallback=10,
        ),
    ] = None
    epochs: Annotated[
        float | None,
        Setting(
            "Expected passes over the data, 20 if not given: they choose rounds, or the rate of "
            "given rounds.",
            "passes",
            above=0,
            below=inf,
        ),
    ] = None
    auto: Annotated[
        str | None, Setting("Settings that fedlsg chose, see fedlsg docs choosing; it writes this.")
    ] = None
    clients: Annotated[
        int | None,
        Setting(
            "Clients that the data is partitioned over.",
            "clients",
            at_least=1,
            at_most=10**8,
            fallback=5,
        ),
    ] = None
    clients_per_round: Annotated[
        int | None,
        Setting(
            "Clients selected in each round; default all.",
            "clients",
            at_least=1,
            at_most=10**8,
        ),
    ] = None
    selection: Annotated[
        str | None,
        Setting(
            "Rule that draws a round's clients; default uniform, or poisson by a server that adds "
            "the noise.",
            choices=SELECTIONS,
        ),
    ] = None
    local_steps: Annotated[
        int | None,
        Setting(
            "Private steps a client takes each round.",
            "steps",
            at_least=1,
            fallback=1,
        ),
    ] = None
    local_learning_rate: Annotated[
        float | None,
        Setting(
            "Learning rate of local steps; default the server's. It follows the schedule.",
            above=0,
            below=inf,
            rules=(idle_unless("local_steps>1 or personal", ONE_STEP),),
        ),
    ] = None
    local_momentum: Annotated[
        float | None,
        Setting(
            "Momentum of local steps.",
            at_least=0,
            below=1,
            fallback=0.0,
            rules=(idle_unless("local_steps>1", ONE_STEP),),
        ),
    ] = None
    proximal: Annotated[
        float | None,
        Setting(
            "mu of FedProx, which pulls local steps to the round's weights.",
            at_least=0,
            below=inf,
            rules=(
                needs(
                    "local_steps>1",
                    "it changes local steps from the second one on: give local_steps=2 or more",
                ),
            ),
        ),
    ] = None
    personal: Annotated[
        str | None,
        Setting(
            "Parameters that stay with a client: classifier, or the start of names.",
            rules=(
                needs(
                    "trust=client",
                    "the noise of values that stay with a client has to be enough without a sum",
                ),
                needs(
                    "downlink=full",
                    "personal parameters are not part of replicas: leave downlink out",
                ),
                needs(
                    "not record_updates",
                    "attacks on recorded payloads do not know personal parameters: leave "
                    "record_updates out",
                ),
                *ON_TEST_PARTS,
                *OF_CLASSES,
            ),
        ),
    ] = None
    personal_learning_rate: Annotated[
        float | None,
        Setting(
            "Learning rate of personal parameters; default the local one.",
            above=0,
            below=inf,
            rules=(
                needs(
                    "personal",
                    "it is a setting of personal parameters: give personal=classifier, too",
                ),
            ),
        ),
    ] = None
    sampling: Annotated[
        Literal["poisson", "shuffle"],
        Setting(
            "poisson, or shuffle: every example once an epoch, no amplification.", rules=SHUFFLED
        ),
    ] = "poisson"
    sample_rate: Annotated[
        float | None,
        Setting(
            "Poisson rate q: the chance of an example to be in a step.",
            above=0,
            at_most=1,
            why="it is the share of the rows in a mean batch; a number of rows is batch_size",
            fallback=0.1,
            rules=(
                needs(
                    "not batch_size",
                    "give either sample_rate (common to all) or batch_size (a rate for each "
                    "client)",
                ),
            ),
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        Setting(
            "Batch of each client (expected, if poisson), instead of sample_rate.",
            "examples",
            at_least=1,
        ),
    ] = None
    microbatch_size: Annotated[
        int | None,
        Setting(
            "Examples whose gradients are held at a time; default: what fits into memory, at most "
            "256 on a CPU.",
            "examples",
            at_least=1,
        ),
    ] = None
    partition: Annotated[
        str | None,
        Setting(
            f"{', '.join(SCHEMES)}, a column (a client for each value), or given: the data's own.",
            fallback="iid",
        ),
    ] = None
    weighting: Annotated[
        Literal["examples", "clients", "noise"] | None,
        Setting(
            "Clients count by their examples, equally, or by 1 / sigma^2 of their noise; default: "
            "by their expected batch with privacy (under own epsilons and partition=iid by noise), "
            "by their examples without.",
            rules=(
                needs(
                    "trust=client",
                    "under trust={trust} the server sees a sum alone: leave weighting out",
                    of="weighting=noise",
                ),
                needs("noise", "no noise is added: leave weighting out", of="weighting=noise"),
            ),
        ),
    ] = None
    alpha: Annotated[
        float | None,
        Setting(
            "Concentration of partition=dirichlet.",
            above=0,
            below=inf,
            fallback=0.5,
            rules=(
                idle_unless(
                    "partition=dirichlet", "give partition=dirichlet, too, or leave alpha out"
                ),
            ),
        ),
    ] = None
    shards_per_client: Annotated[
        int | None,
        Setting(
            "Shards of partition=shards.",
            "shards",
            at_least=1,
            fallback=2,
            rules=(
                idle_unless(
                    "partition=shards", "give partition=shards, too, or leave shards_per_client out"
                ),
            ),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SimulatedTime:
    """Simulated time"""

    availability: Annotated[
        str | None,
        Setting(
            "Chance of a client to be there in a round, or a CSV trace: client,from,to.",
            "share, or a file",
            rules=ONLY_SIMULATED,
        ),
    ] = None
    dropout: Annotated[
        float | None,
        Setting(
            "Share of the selected clients that leave before they train.",
            "share",
            at_least=0,
            below=1,
            rules=ONLY_SIMULATED,
        ),
    ] = None
    speed: Annotated[
        str | None,
        Setting(
            "Spread of clients' computing times: constant, or lognormal S.", rules=ONLY_SIMULATED
        ),
    ] = None
    example_seconds: Annotated[
        float | None,
        Setting(
            "Simulated time of an example's gradient at factor 1; 0.01 if not given.",
            "simulated seconds",
            above=0,
            below=inf,
            rules=ONLY_SIMULATED,
        ),
    ] = None
    uplink_mbps: Annotated[
        float | None,
        Setting(
            "Rate of each client's uplink; default: sending takes no time.",
            "Mbit/s",
            above=0,
            rules=ONLY_SIMULATED,
        ),
    ] = None
    downlink_mbps: Annotated[
        float | None,
        Setting(
            "Rate of each client's downlink; default: sending takes no time.",
            "Mbit/s",
            above=0,
            rules=ONLY_SIMULATED,
        ),
    ] = None
    deadline: Annotated[
        float | None,
        Setting(
            "Time after the start of a round; later replies are not used.",
            "simulated seconds",
            above=0,
            below=inf,
            rules=(*ONLY_SIMULATED, NO_LATE_REPLIES),
        ),
    ] = None
    over_selection: Annotated[
        float | None,
        Setting(
            "Clients on top of clients_per_round; the first replies are used.",
            "share",
            at_least=0,
            at_most=10,
            rules=(
                *ONLY_SIMULATED,
                needs(
                    "clients_per_round<clients",
                    "every round needs all {clients} clients: lower clients_per_round, or leave "
                    "over_selection out",
                ),
                NO_LATE_REPLIES,
            ),
        ),
    ] = None
