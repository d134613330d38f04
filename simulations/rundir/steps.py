"""What goes down, from the settings, and where a run keeps its steps.

One file a step in ``downlink/`` of the run directory. The server writes and reads them; the simulated clients of one
machine read them, too, where their process was not sent a step (another Ray actor was, or the run was resumed): what
each of them would have been sent is in its message all the same, and counted.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlsg.state import ServerState
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.noted_downlink import NOTHING, NotedDownlink
from simulations.settings.codecs import downlink_codec
from simulations.settings.settings import Settings
from strategies.federation.downlink import Downlink, FullDownlink, SparseDownlink

CHECKSUM = 32


def downlink_of(s: Settings, downlink: Downlink) -> dict[str, Any]:
    """What a summary says of it.

    ``repairs``: whole models sent because a client had lost its replica, in all rounds of the run, also interrupted
    ones; ``interrupted``: what rounds sent that were interrupted and run again by ``resume``, which no other sum holds;
    ``added_variance`` in units of the noise in the sum.
    """
    state = downlink.state_dict()
    interrupted = state.get("interrupted", NOTHING)
    if s.downlink == "full":
        return {"name": "full", "interrupted": interrupted}
    repairs = sum(state["repairs"].values())
    codec = downlink_codec(s)
    found = {"name": s.downlink, "codec": codec.name, "repairs": repairs, "interrupted": interrupted}
    return found | codec.summary()


def make_downlink(s: Settings, state: ServerState, folder: Path, note: Path) -> NotedDownlink:
    """The server's side of it."""
    if s.downlink == "full":
        return NotedDownlink(FullDownlink(state), note)
    assert s.clients is not None
    assert s.clients_per_round is not None
    store = StepFiles(folder)
    sparse = SparseDownlink(
        state, downlink_codec(s), clients=s.clients, clients_per_round=s.clients_per_round, store=store
    )
    return NotedDownlink(sparse, note)


@dataclass(frozen=True)
class StepFiles:
    """One file a step, named by the version that it leads to: SHA-256, then the step."""

    folder: Path

    def path(self, version: int) -> Path:
        """Where a step lies."""
        return self.folder / f"step-{version:06d}.bin"

    def save(self, version: int, step: bytes) -> None:
        """Keep a step. Not synced: what a machine loses in a crash, the whole model replaces."""
        write_atomically(self.path(version), hashlib.sha256(step).digest(), step, durable=False)

    def load(self, version: int) -> bytes:
        """A step that was kept. Raises OSError where it is missing, ValueError where it is damaged."""
        content = self.path(version).read_bytes()
        if hashlib.sha256(content[CHECKSUM:]).digest() != content[:CHECKSUM]:
            raise ValueError(f"{self.path(version)} is damaged")
        return content[CHECKSUM:]

    def cut(self, version: int) -> None:
        """Delete what leads beyond a version."""
        for path in self.folder.glob("step-*.bin"):
            if path > self.path(version):
                path.unlink()
