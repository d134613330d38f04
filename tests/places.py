"""Where the repository and a mirror of real data are."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MIRROR = Path(os.environ.get("FEDLSG_DATA") or REPOSITORY.parent / "shared" / "data")
