"""Every file that fedlsg writes: what it is, who writes it, who may read it, how damage is found.

A test makes every kind of run and fails for a file that is not declared, or has another mode. The
tables of docs/files.md are made from these declarations, and the manifest follows them.

Classes:

public    settings, released values, and results that an epsilon covers; the umask decides who may
          read them
private   computed from training data, and no epsilon covers it as it is: for the owner only
secret    what a client never sends: rows, batches, memories without noise, keys, logs; for the
          owner only. Leave it out of a shared or published copy of a run

A file is public or secret in every run. In some runs public files are private: see
``planning.disclosure``.

``RELEASED`` lists what of a run may be seen outside the server, by trust mode. It holds for
callbacks and loggers, rounds.csv, summary.json, TensorBoard's events, the terminal and every page.
``None`` releases everything: epsilon does not depend on who takes part. Under trust=server epsilon
rests on a secret draw of the clients. Who they are, or how many, follows from bytes, counts,
reasons of rejections and times. These are not in the list, and a new number is not released until
somebody enters it. The strategy leaves them out of its report (``ServerNoiseExchange.end``), too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

Class = Literal["public", "private", "secret"]
"""Who may read a file, as the header says."""
Damage = Literal["digest", "grows", "own", "none"]
"""How damage of a file is found.

"digest": the manifest has its digest. "grows": the manifest has a length, and the digest up to
there. "own": the file has a digest of its own until the run ends, because it changes between two
checkpoints. "none": not at all, since nothing relies on its content."""
Weights = Literal["model", "checkpoint", "flat", "command"]
"""How a file holds weights: a model with its facts, a checkpoint, one vector, or in a form of the
command that writes it and notes it itself."""


@dataclass(frozen=True)
class Declared:
    """One kind of file in a folder.

    pattern: of its path in the folder; "*" is a part of a name, "/**" everything in a folder.
    what: its content, for docs/files.md.
    writer: who writes it.
    secret: whether its class is secret in every run.
    damage: how damage is found.
    weights: how it holds trained weights; later processes recognise them
        (``earlier_runs.weights_of_run``). None without weights.
    """

    pattern: str
    what: str
    writer: str
    secret: bool = False
    damage: Damage = "digest"
    weights: Weights | None = None


SERVER, CLIENT, DRIVER = "server", "client", "driver"
"""Writers; the driver is the process that simulates a federation."""
RUN = (
    Declared("config.toml", "all settings, resolved", DRIVER),
    Declared(
        "start.json",
        "names of the settings that were given, what was said of them, and what a run before had "
        "spent, for the page",
        DRIVER,
    ),
    Declared("code.json", "digests of code of the user's own, if the settings name any", DRIVER),
    Declared("rounds.csv", "a row for every round", SERVER, damage="grows"),
    Declared(
        "bytes.csv", "a row for every message; none under `trust=server`", SERVER, damage="grows"
    ),
    Declared("summary.json", "the results, written at the end", SERVER),
    Declared(
        "clients.csv",
        "a row for each client, where they have names or were evaluated: name, examples, epsilon, "
        "test rows, accuracy, loss",
        SERVER,
        secret=True,
    ),
    Declared("report.html", "plots and settings", "server, `fedlsg report`"),
    Declared(
        "model.safetensors",
        "the evaluated model (with `ema`: the average), for plain torch",
        SERVER,
        weights="model",
    ),
    Declared("config.json", "what the model is, and its digest", SERVER),
    Declared(
        "events.out.tfevents.fedlsg",
        "the numbers of `rounds.csv` for TensorBoard, where it is installed",
        SERVER,
        damage="grows",
    ),
    Declared(
        "ledger/run.jsonl",
        "the append-only, chained ledger of all clients: a line has all charges of a round; "
        "under `trust=server` the server's; in a deployment, what a client that does not answer at "
        "the end may have been charged",
        DRIVER,
        damage="own",
    ),
    Declared(
        "ledger/client-*.jsonl",
        "a chained ledger of each client, where clients keep their own: on Flower's "
        "engine, in a deployment (copies), and in runs of older versions",
        "client's account, server",
        damage="own",
    ),
    Declared(
        "ledger/server.jsonl",
        "older versions: the one ledger under `trust=server`",
        SERVER,
        damage="own",
    ),
    Declared("ledger.jsonl", "a merged copy of the ledgers, for readers", SERVER),
    Declared(
        "checkpoint/latest.pt",
        "what `fedlsg resume` continues from",
        SERVER,
        damage="own",
        weights="checkpoint",
    ),
    Declared(
        "checkpoint/previous.pt",
        "the checkpoint of the round before",
        SERVER,
        damage="own",
        weights="checkpoint",
    ),
    Declared(
        "checkpoint/damaged.pt",
        "a damaged checkpoint, after a repair",
        "`fedlsg resume`",
        damage="none",
    ),
    Declared("checkpoint/sent.json", "bytes sent down in the current round", SERVER, damage="own"),
    Declared(
        "checkpoint/outbox/client-*.bin",
        "each client's last payload, to send it again; in a simulation those of two rounds",
        CLIENT,
        damage="own",
    ),
    Declared(
        "downlink/step-*.bin", "server updates as they were sent, with `downlink=sparse`", SERVER
    ),
    Declared("downlink/basis-*.bin", "carriers that the server probed", SERVER),
    Declared(
        "updates/round-*/client-*.bin", "a payload as it was sent, with `record-updates`", SERVER
    ),
    Declared(
        "updates/round-*/sum.npy*", "what a secure sum, or a trusted server, revealed", SERVER
    ),
    Declared("updates/round-*/frame.json", "parameters, blocks, divisor of the payloads", SERVER),
    Declared("updates/round-*/frame.npz*", "L, R and kept positions", SERVER),
    Declared(
        "updates/round-*/weights.npy*",
        "public weights at the start of the round",
        SERVER,
        weights="flat",
    ),
    Declared("updates/round-*/kept.npy*", "kept positions, if the server chose them", SERVER),
    Declared(
        "updates-truth/round-*/client-*.npy*",
        "the clients' batches, to evaluate attacks",
        CLIENT,
        secret=True,
    ),
    Declared(
        "clients/training-data.json",
        "digests of training rows, and of rows and recipe for comparisons: detect changes",
        SERVER,
        secret=True,
    ),
    Declared(
        "clients/client-*/feedback-*.bin",
        "a client's memory without noise, or its personal part, with its payload",
        CLIENT,
        secret=True,
        damage="own",
    ),
    Declared(
        "clients/client-*/batches.key", "key of a client's shuffled batches", CLIENT, secret=True
    ),
    Declared(
        "clients/manifest.json*",
        "the manifest of files that are not public",
        SERVER,
        secret=True,
        damage="none",
    ),
    Declared(
        "manifest.json*", "digests of the public files, to find damage", SERVER, damage="none"
    ),
    Declared(
        "run.log",
        "the log; a traceback may quote data",
        "all processes",
        secret=True,
        damage="grows",
    ),
    Declared(
        "live.html",
        "leads the owner's browser to the page of `--open`; removed at the end",
        DRIVER,
        secret=True,
        damage="none",
    ),
    Declared(
        ".lock", "number of the process that uses the folder", DRIVER, secret=True, damage="none"
    ),
    Declared(
        "ledger/.ledger.lock", "lock of the ledgers", "all processes", secret=True, damage="none"
    ),
    Declared(
        "best/model.safetensors",
        "the best model, with `callbacks=best-model`",
        "callback",
        damage="own",
        weights="model",
    ),
    Declared("best/config.json", "what it is, and its digest", "callback", damage="own"),
    Declared("*-run-id", "name of the run at MLflow, or Weights & Biases", "callback"),
    Declared("wandb/**", "what Weights & Biases keeps", "its library", damage="none"),
    Declared(
        "export/**",
        "the model for other programs",
        "`fedlsg export`",
        damage="none",
        weights="command",
    ),
)
"""A run directory, on every engine."""
NODE = (
    Declared("ledger.jsonl", "the privacy ledger over all runs and servers", CLIENT, secret=True),
    Declared(".ledger.lock", "lock of the ledger", CLIENT, secret=True, damage="none"),
    Declared("without-noise-ledger.jsonl", "replies that no epsilon covers", CLIENT, secret=True),
    Declared(
        ".without-noise-ledger.lock", "lock of that ledger", CLIENT, secret=True, damage="none"
    ),
    Declared("secret.key", "32 random bytes; key of the digest of the data", CLIENT, secret=True),
    Declared("data.json", "N_k, keyed digest of the rows, end of the ledger", CLIENT, secret=True),
    Declared(
        "runs/*/checkpoint/outbox/client-*.bin", "the last payload in a run", CLIENT, secret=True
    ),
    Declared(
        "runs/*/replicas/client-*.bin",
        "the public state as the client last had it",
        CLIENT,
        secret=True,
    ),
    Declared("runs/*/replicas/basis-*.bin", "carriers that the server probed", CLIENT, secret=True),
    Declared(
        "runs/*/clients/client-*/feedback-*.bin",
        "personal parameters, with the payload",
        CLIENT,
        secret=True,
    ),
    Declared("runs/*/clients/client-*/batches.key", "key of shuffled batches", CLIENT, secret=True),
    Declared("cache/**", "decoded or tokenized rows of `.parquet` data", CLIENT, secret=True),
)
"""``ledger-dir`` of a deployed client. All of it is for its owner only."""
COMMANDS = (
    Declared(
        "attack*.json",
        "results of attacks, with rows; `attack-2.json` of the next question, and so on",
        "`fedlsg attack`",
        secret=True,
        damage="none",
    ),
    Declared(
        "attack*.html",
        "reconstructed training examples",
        "`fedlsg attack`",
        secret=True,
        damage="none",
    ),
    Declared(
        "attack*-curves.png", "curves of attacks", "`fedlsg attack`", secret=True, damage="none"
    ),
    Declared(
        "before-after*.*",
        "the same examples under two settings",
        "`fedlsg attack --against mechanism=none`",
        secret=True,
        damage="none",
    ),
    Declared(
        "membership*.*",
        "scores of membership attacks",
        "`fedlsg attack`",
        secret=True,
        damage="none",
    ),
    Declared(
        "audit*.*",
        "what an audit found, over training rows",
        "`fedlsg audit`",
        secret=True,
        damage="none",
    ),
    Declared(
        "inspection/**",
        "statistics of gradients without noise",
        "`fedlsg inspect`",
        secret=True,
        damage="none",
    ),
    Declared(
        "partition.*", "what each client holds", "`fedlsg partition`", secret=True, damage="none"
    ),
)
"""What commands write next to a run, or into ``--out``: computed from training rows without
noise.
"""


@lru_cache(4096)  # of constants; a round names the same files again and again
def find(name: str, among: tuple[Declared, ...] | None = None) -> Declared | None:
    """The declaration of a file by its path in the folder; None for a file that is not fedlsg's.

    ``among``: declarations of the folder; those of a run directory if left out.
    """
    return next(
        (declared for declared in among or (*RUN, *COMMANDS) if _matches(name, declared.pattern)),
        None,
    )


def class_of(name: str, declared: Declared, closed: Collection[str]) -> Class:
    """The class of a file in a run.

    ``closed``: the run's folders that no epsilon covers ("." is all of it), see
    ``planning.disclosure``.
    """
    if declared.secret:
        return "secret"
    inside = any(folder == "." or name.startswith(f"{folder}/") for folder in closed)
    return "private" if inside else "public"


def _matches(name: str, pattern: str) -> bool:
    if pattern.endswith("/**"):
        return name.startswith(pattern.removesuffix("**"))
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)


@dataclass(frozen=True, kw_only=True)
class Released:
    """What may be seen outside the server: by callbacks, in tables and on pages.

    What a field does not name is not shown; a field that is None releases everything.

    rows: columns of rounds.csv, in addition to the workload's own metrics.
    summary: entries of summary.json.
    files: patterns of a run directory's public files.
    """

    rows: frozenset[str] | None = None
    summary: frozenset[str] | None = None
    files: frozenset[str] | None = None

    @property
    def counted(self) -> bool:
        """Whether bytes, counts and times of clients may be seen."""
        return self.rows is None

    def of_summary(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of a summary that may be seen."""
        return {
            name: value
            for name, value in summary.items()
            if self.summary is None or name in self.summary
        }


EVERYTHING = Released()
AT_SERVER = Released(
    rows=frozenset({"round", "accuracy", "loss", "epsilon_max", "epsilon_median"}),
    summary=frozenset(
        {
            "workload",
            "model",
            "method",
            "pretrained_sha256",
            "seed",
            "rounds",
            "clients",
            "accuracy",
            "accuracy_by_split",
            "recall_by_class",
            "accuracy_by_client",
            "loss",
            "features",
            "normalised",
            "data",
            "probe_source",
            "metrics",
            "private",
            "epsilon_max",
            "epsilon_median",
            "epsilon_by_reader",
            "delta",
            "accountant",
            "noise_multiplier",
            "rho",
            "pruning",
            "unit",
            "adjacency",
            "trust",
            "secure_sum",
            "reproducible",
            "isolation",
            "codec",
            "engine",
            "device",
            "precision",
            "activation_storage",
            "chance",
            "hardware",
            "versions",
            "own_code",
            "stopped",
            "diverged",
        }
    ),
    files=frozenset(
        {
            "config.toml",
            "start.json",
            "rounds.csv",
            "summary.json",
            "report.html",
            "model.safetensors",
            "config.json",
            "manifest.json*",
            "events.out.tfevents.fedlsg",
            "ledger/run.jsonl",
            "ledger/server.jsonl",
            "ledger.jsonl",
            "best/*",
            "*-run-id",
            "downlink/step-*.bin",
            "downlink/basis-*.bin",
            "updates/round-*/sum.npy*",
            "updates/round-*/frame.*",
            "updates/round-*/weights.npy*",
            "updates/round-*/kept.npy*",
        }
    ),
)
RELEASED: Mapping[str, Released] = MappingProxyType(
    {"client": EVERYTHING, "secure": EVERYTHING, "aggregate": EVERYTHING, "server": AT_SERVER}
)
"""What is released, by the setting ``trust``; ``planning.disclosure`` has the one exception."""
