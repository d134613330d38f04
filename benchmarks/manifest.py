"""CPU time that the manifest adds to a round, over 1,000 rounds, with recorded payloads: it must not grow.

python -m benchmarks.manifest

Rounds are those of a real run directory without the training: 10 clients of 100 answer; payloads of 4 kB, a ledger line
each, rows and messages are written, then the manifest. Prints milliseconds a round in each hundred rounds.
"""

import os
import tempfile
import time
from pathlib import Path

from fedlsg.privacy import RUN, Entry
from simulations.rundir.files import save_bytes, write_atomically
from simulations.rundir.journal import Journal
from simulations.rundir.last_payload import LastPayload
from simulations.rundir.manifest import Manifest
from simulations.rundir.rundir import RunDir

ROUNDS, CLIENTS, ASKED, PAYLOAD = 1000, 100, 10, 4096


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        run.write_data_digest("0")
        write_atomically(run.config, b"rounds = 1000\n")
        manifest, heads = Manifest(run, ()), {}
        tables = Journal(run.rounds, "round\n"), Journal(run.messages, "round,client\n")
        ledger = run.charges
        spent = [0.0] * (ROUNDS // 100)
        for round in range(1, ROUNDS + 1):
            asked = [(round * 7 + i) % CLIENTS for i in range(ASKED)]
            ledger.charge([_entry(client, round) for client in asked])
            heads[RUN] = ledger.snapshot()
            for client in asked:
                payload = os.urandom(PAYLOAD)
                LastPayload(run.last_payload(client)).store("question", payload)
                run.save_update(round, client, payload)
            save_bytes(run.checkpoint, os.urandom(PAYLOAD))
            for table in tables:
                table.append(f"{round}\n" * ASKED)
            marks = {"rounds": tables[0].mark(), "messages": tables[1].mark()}
            began = time.process_time()
            manifest.checkpoint(round, marks, heads, asked)
            spent[(round - 1) // 100] += time.process_time() - began
        print("rounds", *(f"{100 * i + 1}-{100 * i + 100}: {10 * s:.2f} ms" for i, s in enumerate(spent)), sep="\n")
        names = ("manifest.json", "manifest.jsonl", "clients/manifest.json")
        print(*(f"{name}: {(run.path / name).stat().st_size} bytes" for name in names), sep="\n")
        began = time.process_time()
        manifest.close(marks)
        print(f"at the end: {time.process_time() - began:.2f} s")


def _entry(client: int, round: int) -> Entry:
    return Entry(
        client=client, round=round, attempt=0, steps=1, sample_rate=0.05, noise_multiplier=2.0, clip_norm=1.0,
        num_examples=100, mechanism="dp",
    )  # fmt: skip


if __name__ == "__main__":
    main()
