"""What of a run may be seen outside the server: one list for each trust mode, for everybody who shows anything.

Callbacks and loggers, rounds.csv, summary.json, TensorBoard's events, the terminal and every page read what this lets
pass. ``None`` lets everything pass: the server of that mode knows who takes part, and epsilon does not rest on it.

Under trust=server epsilon rests on a secret draw of the clients. Who they are, or how many, follows from bytes, counts,
reasons of rejections and times; these are not in the list, and a new number is not either until it is entered here. The
strategy hands on a report without them (``ServerNoiseExchange.end``), so that nothing here would know them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Released:
    """``rows``: columns of rounds.csv, next to the workload's own metrics. ``summary``: entries of summary.json.

    ``files``: patterns of a run directory's public files; the manifest of public files lists no other.
    """

    rows: frozenset[str] | None = None
    summary: frozenset[str] | None = None
    files: frozenset[str] | None = None

    @property
    def counted(self) -> bool:
        """Whether bytes, counts and times of clients may be seen."""
        return self.rows is None

    def of_summary(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """The entries that may be seen."""
        return {name: value for name, value in summary.items() if self.summary is None or name in self.summary}


EVERYTHING = Released()
AT_SERVER = Released(
    rows=frozenset({"round", "accuracy", "loss", "epsilon_max", "epsilon_median"}),
    summary=frozenset({
        "workload", "model", "method", "pretrained_sha256", "seed", "rounds", "clients", "accuracy",
        "accuracy_by_split", "accuracy_by_client", "loss", "features", "normalised", "data", "probe_source", "metrics",
        "private", "epsilon_max", "epsilon_median", "epsilon_by_reader", "delta", "accountant", "noise_multiplier",
        "rho", "pruning", "unit", "adjacency", "trust", "secure_sum", "reproducible", "codec", "engine", "device",
        "precision", "activation_storage", "chance", "hardware", "versions", "own_code", "stopped", "diverged",
    }),
    files=frozenset({
        "config.toml", "rounds.csv", "summary.json", "report.html", "model.safetensors", "config.json",
        "manifest.json*", "events.out.tfevents.fedlsg", "ledger/run.jsonl", "ledger/server.jsonl", "ledger.jsonl",
        "best/*", "*-run-id",
        "downlink/step-*.bin", "downlink/basis-*.bin", "updates/round-*/sum.npy*", "updates/round-*/frame.*",
        "updates/round-*/weights.npy*", "updates/round-*/kept.npy*",
    }),
)  # fmt: skip
RELEASED: Mapping[str, Released] = MappingProxyType(
    {"client": EVERYTHING, "secure": EVERYTHING, "aggregate": EVERYTHING, "server": AT_SERVER}
)
"""By trust. Where nothing is private, nobody is drawn in secret: see ``Base.released``."""
