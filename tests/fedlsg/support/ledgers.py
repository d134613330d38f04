"""Entries of a ledger, and ledgers with some of them."""

import hashlib
from pathlib import Path

from fedlsg.privacy import Entry, Ledger, read_entries

TERMS = {
    "steps": 2,
    "sample_rate": 0.2,
    "noise_multiplier": 1.5,
    "clip_norm": 0.5,
    "num_examples": 300,
    "mechanism": "dp",
    "reproducible": False,
}


def entry(round: int = 0, attempt: int = 0, *, client: int = 3, **changes: object) -> Entry:
    """An entry of ``TERMS`` with changes."""
    return Entry(client=client, round=round, attempt=attempt, **{**TERMS, **changes})  # type: ignore[arg-type]


def filled(path: Path, rounds: int = 4) -> Ledger:
    """Client 3's ledger with an entry of each round from 0 on."""
    ledger = Ledger(path, client=3)
    for number in range(rounds):
        ledger.charge(entry(number))
    return ledger


def snapshots(paths: list[Path]) -> dict[str, tuple[int, str]]:
    """The part of a checkpoint that ``verify_extends`` reads."""
    ledgers = [Ledger(path, client=read_entries(path)[0].client) for path in paths]
    return {str(ledger.client): ledger.snapshot() for ledger in ledgers}


def sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
