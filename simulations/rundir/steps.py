"""The steps of a sparse downlink and the carriers of probes, one file each in ``downlink/`` of the run directory.

The server writes and reads them. The simulated clients of one process read a step here if another one was sent it, or
the run was resumed; a Ray worker gets it from the driver. It is in each client's message all the same, and counted.
"""

from dataclasses import dataclass
from pathlib import Path

from simulations.rundir.files import sealed

FAR = 50
"""A shared replica with more missing steps than this reads the run's checkpoint: replaying takes longer."""


@dataclass(frozen=True)
class StepFiles:
    """A file a step, named by the version that it leads to, and one a probe, by its round: SHA-256, then content."""

    folder: Path

    def path(self, version: int) -> Path:
        """The file of a step."""
        return self.folder / f"step-{version:06d}.bin"

    def save(self, version: int, step: bytes) -> None:
        """Keep a step. Not synced: if a crash loses a step, the whole model replaces it."""
        sealed.save_bytes(self.path(version), step)

    def load(self, version: int) -> bytes:
        """A step that was kept. Raises OSError where it is missing, DamagedError where it is damaged."""
        return sealed.load_bytes(self.path(version))

    @property
    def newest_basis(self) -> int:
        """The round of the carriers that were probed last; 0 without any."""
        return max((int(path.stem.rpartition("-")[2]) for path in self.folder.glob("basis-*.bin")), default=0)

    def save_basis(self, round: int, basis: bytes) -> None:
        """Keep the carriers that were probed in a round, and forget later ones. Not synced, as a step."""
        path = self.folder / f"basis-{round:06d}.bin"
        sealed.save_bytes(path, basis)
        for later in self.folder.glob("basis-*.bin"):
            if later > path:  # of a process whose rounds were lost
                later.unlink()

    def load_basis(self, round: int) -> bytes:
        """The carriers of a round. Raises as ``load``."""
        return sealed.load_bytes(self.folder / f"basis-{round:06d}.bin")

    def after(self, version: int) -> range:
        """Versions of the steps beyond one, up to a missing file."""
        newest = version
        while self.path(newest + 1).exists():
            newest += 1
        return range(version + 1, newest + 1)

    def cut(self, version: int) -> None:
        """Delete the steps beyond a version."""
        for path in self.folder.glob("step-*.bin"):
            if path > self.path(version):
                path.unlink()
