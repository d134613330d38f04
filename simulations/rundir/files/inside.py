"""A run directory may come from anybody: its links must not lead a reader, or what it writes, to other files."""

import os
from contextlib import suppress
from pathlib import Path


def check_inside(folder: Path) -> None:
    """Raise ValueError for a link that leads out of a folder, and for what is neither file nor folder.

    Folders that this user cannot read are left out: nothing in them can be opened.
    """
    waiting = [folder]
    while waiting:
        with suppress(PermissionError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_symlink():
                    if not path.resolve().is_relative_to(folder.resolve()):
                        raise ValueError(
                            f"{path} is a link to {path.resolve()}, outside of the run directory: nothing is read or "
                            "written through it; put what it leads to in its place"
                        )
                elif entry.is_dir():
                    waiting.append(path)
                elif not entry.is_file() and path.exists():
                    raise ValueError(f"{path} is no file and no folder: a run leaves nothing else, remove it")
