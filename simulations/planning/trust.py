"""Code that a run directory names is permitted to run here, or refused: ``allow_code``.

All commands ask it, and nothing else permits such code. A run directory may come from anybody.
Reading one runs nothing. A command that needs its code runs it in three cases only: the user named
its file himself; he ran it under the same name from the same path before (``is_known``); or he
gives --trust-code, and its file and digest are printed. In each case the code has to be what the
run recorded when it began (``code.json``).

The list of code that this user ran is one of his own (``user_lists``). If no such file can be kept,
or others could have written it, nothing is known, and commands ask.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from fedlsg import bounded
from fedlsg.simulations.settings.settings import code_in
from fedlsg.simulations.storage.atomic_files import DamagedError, seal, unseal, write_atomically
from fedlsg.user_code import is_permitted, permit, shown, stands_for
from fedlsg.user_code.source_digest import Source, digest_of_source, source_of
from fedlsg.user_lists import UserList

CODE = UserList(
    name="known-code", kept=1000, lost="this code is not kept as known, so resume will ask for it"
)
"""Code that this user ran: (digest, name) pairs."""


def is_known(digest: str, name: str) -> bool:
    """Whether this user ran code of this digest under this name, FILE.py:NAME with an absolute
    path.
    """
    return CODE.has(digest, name)


CODE_RECORD = "code.json"
"""The file of a run directory with the digests of its code."""
RESTORE = "restore it from a copy"
READS = ("workload", "method", "source")
"""Settings whose code a look at a run needs."""
CONTINUES = (*READS, "callbacks")
"""Settings whose code a run that goes on needs."""
NOTHING: Mapping[str, object] = {}
"""No settings of the user's own."""


def keep_code(run: Path, settings: Mapping[str, object], own_code: Mapping[str, str]) -> None:
    """Record the code of a new run in its directory, and as known to its user.

    Nothing is recorded if all code is fedlsg's.

    run: the directory.
    settings: raw ones.
    own_code: the digests of what was loaded, by setting.
    """
    names = code_in(settings)
    if not names and not own_code:
        return
    mine = {setting: [stands_for(name) for name in own] for setting, own in names.items()}
    sources = {setting: [source_of(name) for name in own] for setting, own in mine.items()}
    files = {setting: [source.digest for source in own] for setting, own in sources.items()}
    each = {setting: [source.by_name for source in own] for setting, own in sources.items()}
    record = seal({"own_code": dict(own_code), "files": files, "each": each}, indent=2)
    write_atomically(run / CODE_RECORD, record)
    known = set[tuple[str, str]]()
    for setting, own in mine.items():
        known |= set(zip(files[setting], own, strict=True))
    CODE.remember(known)


def recorded(run: Path) -> dict[str, Any]:
    """What ``keep_code`` wrote; empty for a run without it. Raises DamagedError for other text."""
    if not (run / CODE_RECORD).exists():
        return {}
    record = unseal(run / CODE_RECORD, otherwise=RESTORE)
    otherwise = f"{run / CODE_RECORD} is damaged: {RESTORE}"
    if not all(isinstance(record.get(part), dict) for part in ("own_code", "files")):
        raise DamagedError(otherwise)
    return record


@dataclass(frozen=True, kw_only=True)
class Code:
    """Code of a setting that would run.

    setting: the setting that names it.
    recorded: its name in the run's settings.
    name: the name under which it would run here.
    source: the files of that name, and their digest.
    """

    setting: str
    recorded: str
    name: str
    source: Source

    @property
    def digest(self) -> str:
        """The digest of the files that would run."""
        return self.source.digest

    @property
    def file(self) -> tuple[str, str]:
        """The digest, and the path of the file."""
        return self.digest, self.name.rpartition(":")[0]


def allow_code(
    run: Path,
    named: Mapping[str, object] = NOTHING,
    *,
    trust_code: bool = False,
    needs: Collection[str] = READS,
    say: Callable[[str], object] = print,
) -> list[str]:
    """Permit the code that the settings of a run directory name.

    Returns the settings among ``named`` that name code.

    named: raw settings that the user gave.
    trust_code: code may run that the user has neither named nor run.
    needs: the settings whose code the command needs.
    say: prints file and digest of code that runs because of ``trust_code``.
    Raises ValueError, with the file, its digest and what to do, for code that its user has not
    named, run or trusted, and for other code than the run's record.
    """
    try:
        names = code_in(bounded.read_toml(run / "config.toml"))
    except (OSError, ValueError):  # what reads the settings reports it
        return []
    mine = code_in(named)
    before = recorded(run).get("files", {})
    needed = {
        setting: _find(run, setting, own, mine.get(setting))
        for setting, own in names.items()
        if setting in needs
    }
    changed, others = changed_since(
        run, {setting: [code.source for code in codes] for setting, codes in needed.items()}
    )
    if changed:
        raise other_code(changed, others)
    named_files = {
        (digest_of_source(name), name.rpartition(":")[0]) for own in mine.values() for name in own
    }
    codes = list(chain.from_iterable(needed.values()))
    for code in codes:
        if code.file in named_files:
            continue
        has_record = code.setting in before
        if trust_code and has_record:
            say(
                f"--trust-code: {code.setting} {shown(code.name)!r} runs {code.file[1]!r}, sha256 "
                f"{code.digest}"
            )
        elif not is_permitted(code.recorded) and not is_known(code.digest, code.name):
            raise _refusal(run, code, has_record=has_record)
    CODE.remember({(code.digest, code.name) for code in codes if code.file in named_files})
    for code in codes:
        permit(code.name, of=code.recorded, files=code.source.files)
    return [setting for setting in mine if setting in needed]


def _find(run: Path, setting: str, names: Sequence[str], mine: Sequence[str] | None) -> list[Code]:
    """The code of a setting. Raises ValueError for another name or a missing file.

    names: in the run's settings.
    mine: the same as the user gave them; None if he gave none.
    """
    own = [stands_for(name) for name in names] if mine is None else mine
    if [shown(name) for name in own] != [shown(name) for name in names]:
        words = (", ".join(map(shown, some)) for some in (names, own))
        raise ValueError("the run's {} is {}, not {}: name the run's own".format(setting, *words))
    entries = [
        Code(setting=setting, recorded=name, name=here, source=source_of(here))
        for name, here in zip(names, own, strict=True)
    ]
    for code in entries:
        if not code.digest:
            raise ValueError(
                f"{setting}: there is no file {code.file[1]}, which {run} names: restore it, or "
                f"name it where it is now, as {_option(setting, shown(code.name))}"
            )
    return entries


def changed_since(run: Path, now: Mapping[str, Sequence[Source]]) -> tuple[list[str], list[str]]:
    """(settings whose code is not what a run recorded when it began, names of files that differ).

    Files differ that have changed, are new, or no longer exist. Both are empty for a run without a
    record of its code.
    """
    record = recorded(run)
    before = record.get("files", {})
    changed = []
    files = set[str]()
    for setting in sorted(now):
        digests = [source.digest for source in now[setting]]
        if setting not in before or digests == before[setting]:
            continue
        changed.append(setting)
        for was, source in zip(record["each"][setting], now[setting], strict=False):
            files |= {name for name, _ in was.items() ^ source.by_name.items()}
    return changed, sorted(files)


def code_of_run(run: Path) -> str:
    """Eight digits that are equal for runs of the same code of a user's own.

    They are of its files, and of what was loaded from a script or a notebook. Empty if all code is
    fedlsg's.
    """
    record = recorded(run)
    digests = {**record.get("own_code", {}), **record.get("files", {})}
    return sha256(repr(sorted(digests.items())).encode()).hexdigest()[:8] if digests else ""


def other_code(
    settings: Collection[str], files: Collection[str] = (), way_out: str = "start a new run"
) -> ValueError:
    """The error about code that is not what a run recorded; ``files``: those that differ."""
    return ValueError(
        f"the code of the run's own {' and '.join(settings)} differs from that which this run "
        f"began with: restore the file {' and '.join(dict.fromkeys(files))}".rstrip()
        + f", or {way_out}"
    )


def _refusal(run: Path, code: Code, *, has_record: bool) -> ValueError:
    """The error about code that the user has not named, run or trusted."""
    fix = f"read it, then name it: {_option(code.setting, code.name)}"
    fix += (
        ", or add --trust-code (in Python: trust_code=True)"
        if has_record
        else " (the run has no record of its code)"
    )
    return ValueError(
        f"{run} names code, {code.setting} {shown(code.name)!r} of {code.file[1]!r} (sha256 "
        f"{code.digest}), which you have not run from there ({_store()}). It may come from "
        f"somebody else, so nothing of it was run: {fix}"
    )


def _store() -> str:
    """Where the list of known code is, in words."""
    try:
        return f"no entry in {CODE.place}"
    except RuntimeError:
        return "there is no home that could say so"


def _option(setting: str, name: str) -> str:
    """The option that gives a setting this name."""
    return f"--{setting} {name}" if setting in ("workload", "method") else f"-c {setting}={name}"
