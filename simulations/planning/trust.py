"""Whether code that a run directory names may run here. All commands ask ``allow_code``, and no
other code permits it.

A run directory may come from anybody. Reading one runs nothing. A command that needs its code runs
it where the user named its file himself, ran it under the same name from the same path before
(``is_known``), or says --trust-code after its file and digest are printed; and in each of these
cases only if it is what the run recorded when it began (``code.json``).

The list of code that this user ran is one of his own (``user_lists``). Where no such file can be
kept, or others could have written it, nothing is known, and commands ask.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
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


def is_known(digest: str, name: str) -> bool:
    """Whether this user ran code of this digest under this name, FILE.py:NAME with an absolute
    path.
    """
    return CODE.has(digest, name)


CODE_RECORD, RESTORE = "code.json", "restore it from a copy"
READS = ("workload", "method", "source")
"""Settings whose code a look at a run needs."""
CONTINUES = (*READS, "callbacks")
NOTHING: Mapping[str, object] = {}


def keep_code(run: Path, settings: Mapping[str, object], own_code: Mapping[str, str]) -> None:
    """Record the code of a run that begins, in its directory and for its user; nothing where all of
    it is fedlsg's.

    ``own_code``: the digests of what was loaded, by setting; ``settings``: raw ones.
    """
    names = code_in(settings)
    if not names and not own_code:
        return
    mine = {setting: [stands_for(name) for name in own] for setting, own in names.items()}
    sources = {setting: [source_of(name) for name in own] for setting, own in mine.items()}
    files = {setting: [source.digest for source in own] for setting, own in sources.items()}
    each = {setting: [source.by_name for source in own] for setting, own in sources.items()}
    write_atomically(
        run / CODE_RECORD,
        seal({"own_code": dict(own_code), "files": files, "each": each}, indent=2),
    )
    CODE.remember(
        {
            (digest, name)
            for setting in mine
            for digest, name in zip(files[setting], mine[setting], strict=True)
        }
    )


def recorded(run: Path) -> dict[str, Any]:
    """What ``keep_code`` wrote; empty for a run without it. Raises DamagedError."""
    if not (run / CODE_RECORD).exists():
        return {}
    record = unseal(run / CODE_RECORD, otherwise=RESTORE)
    otherwise = f"{run / CODE_RECORD} is damaged: {RESTORE}"
    if not all(isinstance(record.get(part), dict) for part in ("own_code", "files")):
        raise DamagedError(otherwise)
    return record


@dataclass(frozen=True, kw_only=True)
class Code:
    """Code of a setting: the name that the run recorded, the one that would run, and the digest of
    that.
    """

    setting: str
    recorded: str
    name: str
    source: Source

    @property
    def digest(self) -> str:
        return self.source.digest

    @property
    def file(self) -> tuple[str, str]:
        return self.digest, self.name.rpartition(":")[0]


def allow_code(
    run: Path,
    named: Mapping[str, object] = NOTHING,
    *,
    trust_code: bool = False,
    needs: Collection[str] = READS,
    say: Callable[[str], object] = print,
) -> list[str]:
    """Permit the code that the settings of a run directory name. Returns the settings among
    ``named`` that name it.

    named: raw settings of the user's own; ``say`` prints file and digest before code runs because
    of ``trust_code``.
    Raises ValueError, with the file, its digest and what to do, for code that its user has not
    named, run or trusted, and for other code than the run's record.
    """
    try:
        names = code_in(bounded.read_toml(run / "config.toml"))
    except (OSError, ValueError):  # what reads the settings reports it
        return []
    mine, record = code_in(named), recorded(run)
    before = record.get("files", {})
    wanted = {
        setting: _find(run, setting, names[setting], mine.get(setting))
        for setting in names
        if setting in needs
    }
    changed, others = changed_since(
        run, {setting: [code.source for code in codes] for setting, codes in wanted.items()}
    )
    if changed:
        raise other_code(changed, others)
    files = {
        (digest_of_source(name), name.rpartition(":")[0]) for own in mine.values() for name in own
    }
    wanted_code = [code for some in wanted.values() for code in some]
    for code in wanted_code:
        if trust_code and code.setting in before and code.file not in files:
            say(
                f"--trust-code: {code.setting} {shown(code.name)!r} runs {code.file[1]!r}, sha256 "
                f"{code.digest}"
            )
        elif (
            code.file not in files
            and not is_permitted(code.recorded)
            and not is_known(code.digest, code.name)
        ):
            raise _refusal(run, code, has_record=code.setting in before)
    CODE.remember({(code.digest, code.name) for code in wanted_code if code.file in files})
    for code in wanted_code:
        permit(code.name, of=code.recorded, files=code.source.files)
    return [setting for setting in mine if setting in wanted]


def _find(run: Path, setting: str, names: Sequence[str], mine: Sequence[str] | None) -> list[Code]:
    """The code of a setting; ``mine``: as the user names it. Raises ValueError for another name or
    a missing file.
    """
    own = [stands_for(name) for name in names] if mine is None else mine
    if [shown(name) for name in own] != [shown(name) for name in names]:
        words = (", ".join(map(shown, some)) for some in (names, own))
        raise ValueError("the run's {} is {}, not {}: name the run's own".format(setting, *words))
    entries = [
        Code(setting=setting, recorded=name, name=one, source=source_of(one))
        for name, one in zip(names, own, strict=True)
    ]
    for code in entries:
        if not code.digest:
            raise ValueError(
                f"{setting}: there is no file {code.file[1]}, which {run} names: restore it, or "
                f"name it where it is now, as {_option(setting, shown(code.name))}"
            )
    return entries


def changed_since(run: Path, now: Mapping[str, Sequence[Source]]) -> tuple[list[str], list[str]]:
    """The settings whose code is not what a run recorded when it began, and the names of the files
    that changed, are new, or are gone. Nothing for a run without a record of its code.
    """
    record = recorded(run)
    before = record.get("files", {})
    changed = [
        setting
        for setting in sorted(now)
        if setting in before and [source.digest for source in now[setting]] != before[setting]
    ]
    pairs = [
        pair
        for setting in changed
        for pair in zip(record["each"][setting], now[setting], strict=False)
    ]
    files = {name for was, source in pairs for name, _ in was.items() ^ source.by_name.items()}
    return changed, sorted(files)


def code_of_run(run: Path) -> str:
    """Eight digits that are equal for runs of the same code of a user's own: of its files, and of
    what was loaded from a script or a notebook. Empty where all of it is fedlsg's.
    """
    record = recorded(run)
    digests = {**record.get("own_code", {}), **record.get("files", {})}
    return sha256(repr(sorted(digests.items())).encode()).hexdigest()[:8] if digests else ""


def other_code(
    settings: Collection[str], files: Collection[str] = (), way_out: str = "start a new run"
) -> ValueError:
    """The refusal of code that is not what a run recorded; ``files``: which of it, if that is
    known.
    """
    return ValueError(
        f"the code of the run's own {' and '.join(settings)} differs from that which this run "
        f"began with: restore the file {' and '.join(dict.fromkeys(files))}".rstrip()
        + f", or {way_out}"
    )


def _refusal(run: Path, code: Code, *, has_record: bool) -> ValueError:
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
    try:
        return f"no entry in {CODE.place}"
    except RuntimeError:
        return "there is no home that could say so"


def _option(setting: str, name: str) -> str:
    return f"--{setting} {name}" if setting in ("workload", "method") else f"-c {setting}={name}"
