"""Which code a process runs: version and digest of the packages it imported. Server and clients compare them once.

If a client's code clips or adds noise differently, every reported epsilon is wrong. So the server puts its identity
into the query, each client puts its own into the reply, and both refuse a difference.

The digest covers every .py file of the three packages that a run can import. Attacks and audit read finished runs; they
are not in a Flower bundle and not in the digest. So a clone, a wheel and a bundle of one version have one digest.

Not covered: other packages (torch, numpy), and a program that reports a false identity.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from fedlsg.user_code.digest import version_at

PACKAGES = ("fedlsg", "simulations", "strategies")
OUTSIDE = re.compile(r"fedlsg/attacks/|simulations/attack/|simulations/audit/")
"""Files that no run imports: ``fab-exclude`` in pyproject.toml leaves them out of a bundle."""

RECORD = "code"
SHORT = 12
"""Hexadecimal digits of a digest in a message for people."""


@dataclass(frozen=True, kw_only=True)
class CodeIdentity:
    """Version, SHA-256 of the files, and the folder that holds the packages (it is shown, and not compared)."""

    version: str
    digest: str
    folder: str

    def __str__(self) -> str:
        where = f" from {self.folder}" if self.folder else ""
        return f"fedlsg {self.version} ({self.digest[:SHORT]}){where}"

    def same(self, other: "CodeIdentity") -> bool:
        """Whether both are the same code, wherever it is installed."""
        return (self.version, self.digest) == (other.version, other.digest)


class OtherCodeError(RuntimeError):
    """Server and client run different code."""


@lru_cache(maxsize=1)
def own_identity() -> CodeIdentity:
    """The code that this process imported, whatever its working directory is."""
    return identity_of([_folder(name) for name in PACKAGES])


def identity_of(packages: list[Path]) -> CodeIdentity:
    """The identity of these three package folders."""
    root = packages[0].parent
    return CodeIdentity(version=version_at(root), digest=digest_of(packages), folder=str(root))


def digest_of(packages: list[Path]) -> str:
    """SHA-256 over names and contents of the .py files of package folders, in the order of the names."""
    files = {f"{p.name}/{file.relative_to(p).as_posix()}": file for p in packages for file in p.rglob("*.py")}
    sha = hashlib.sha256()
    for name in sorted(files):
        if not OUTSIDE.match(name):
            content = files[name].read_bytes()
            sha.update(f"{name}\n{len(content)}\n".encode() + content)
    return sha.hexdigest()


def _folder(package: str) -> Path:
    spec = find_spec(package)  # finds an imported package where it was imported from
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def code_record(*, local: bool = True) -> ConfigRecord:
    """This process's identity, for a message; with its folder only if the message stays on this machine."""
    own = own_identity()
    return ConfigRecord({"version": own.version, "digest": own.digest, "folder": own.folder if local else ""})


def check_same_code(content: RecordDict, sender: str, *, local: bool = True) -> None:
    """Raise OtherCodeError, naming both, unless ``sender``, whose message this is, runs the code of this process."""
    own, record = own_identity(), content.config_records.get(RECORD)
    own = own if local else replace(own, folder="")  # the error text may leave this machine
    fix = (
        "install the same version of fedlsg on both sides, and let no other fedlsg, strategies or simulations come "
        "before it on the Python path"
    )
    if record is None or not {"version", "digest", "folder"} <= record.keys():
        raise OtherCodeError(f"{sender} does not say which code it runs, this process runs {own}: {fix}")
    theirs = CodeIdentity(**{name: str(record[name]) for name in ("version", "digest", "folder")})
    if not own.same(theirs):
        raise OtherCodeError(f"{sender} runs {theirs}, this process runs {own}: {fix}")
