"""Whether code that a run directory names may run here. All commands ask ``allow_code``, and no other code permits it.

A run directory may come from anybody. Reading one runs nothing. A command that needs its code runs it where the user
named it himself, ran the same code at the same path before (``known_code``), or says --trust-code after its file and
digest are printed; and in each of these cases only if it is what the run recorded when it began (``code.json``).
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fedlsg.code_digest import digest_of_source
from fedlsg.user_code import is_permitted, permit, shown, stands_for
from simulations.plan.known_code import is_known, place, remember
from simulations.settings.settings import code_in

RECORD = "code.json"
READS = ("workload", "method", "source")
"""Settings whose code a look at a run needs."""
CONTINUES = (*READS, "callbacks")
NOTHING: Mapping[str, object] = {}


def keep_code(run: Path, settings: Mapping[str, object], own_code: Mapping[str, str]) -> None:
    """Record the code of a run that begins, in its directory and for its user; nothing where all of it is fedlsg's.

    ``own_code``: the digests of what was loaded, by setting; ``settings``: raw ones.
    """
    from simulations.rundir.files.atomic import write_atomically
    from simulations.rundir.files.sealed import seal

    names = code_in(settings)
    if not names and not own_code:
        return
    mine = {setting: [stands_for(name) for name in own] for setting, own in names.items()}
    files = {setting: [digest_of_source(name) for name in own] for setting, own in mine.items()}
    write_atomically(run / RECORD, seal({"own_code": dict(own_code), "files": files}, indent=2))
    pairs = (pair for setting, own in mine.items() for pair in zip(files[setting], own, strict=True))
    remember((digest, name.rpartition(":")[0]) for digest, name in pairs)


def recorded(run: Path) -> dict[str, Any]:
    """What ``keep_code`` wrote; empty for a run without it. Raises DamagedError."""
    if not (run / RECORD).exists():
        return {}
    from simulations.rundir.files.sealed import unseal

    return unseal(run / RECORD, otherwise="restore it from a copy")


def allow_code(
    run: Path, named: Mapping[str, object] = NOTHING, *, trust_code: bool = False, needs: Collection[str] = READS,
    say: Callable[[str], object] = print,
) -> list[str]:  # fmt: skip
    """Permit the code that the settings of a run directory name. Returns the settings among ``named`` that name it.

    named: raw settings of the user's own; ``say`` prints file and digest before code runs because of ``trust_code``.
    Raises ValueError, with the file, its digest and what to do, for code that its user has not named, run or trusted,
    and for other code than the run's record.
    """
    try:
        names = code_in(tomllib.loads((run / "config.toml").read_text(encoding="utf-8")))
    except (OSError, ValueError):  # whoever reads the settings reports it
        return []
    mine, before = code_in(named), recorded(run).get("files", {})
    pairs = []
    for setting in [setting for setting in names if setting in needs]:
        own = mine.get(setting, [stands_for(name) for name in names[setting]])
        if [shown(name) for name in own] != [shown(name) for name in names[setting]]:
            raise ValueError(f"the run's {setting} is {_words(names[setting])}, not {_words(own)}: name the run's own")
        digests = [digest_of_source(name) for name in own]
        if missing := [name for name, digest in zip(own, digests, strict=True) if not digest]:
            raise ValueError(
                f"{setting}: there is no file {missing[0].rpartition(':')[0]}, which {run} names: restore it, or name it "
                f"where it is now, as {_option(setting, shown(missing[0]))}"
            )
        if setting in before and digests != before[setting]:
            raise other_code([setting])
        for name, actual, digest in zip(names[setting], own, digests, strict=True):
            path = actual.rpartition(":")[0]
            if setting in mine:
                remember([(digest, path)])
            elif trust_code and setting in before:
                say(f"--trust-code: {setting} {shown(name)!r} runs {path!r}, sha256 {digest}")
            elif not is_permitted(name) and not is_known(digest, path):
                raise _refusal(run, setting, actual, digest, has_record=setting in before)
            pairs.append((name, actual))
    for name, actual in pairs:
        permit(actual, of=name)
    return [setting for setting in mine if setting in needs and setting in names]


def other_code(settings: Collection[str]) -> ValueError:
    """The refusal of code that is not what a run recorded."""
    return ValueError(
        f"the code of the run's own {' and '.join(settings)} differs from that which this run began with: restore the "
        "file, or start a new run"
    )


def _refusal(run: Path, setting: str, name: str, digest: str, *, has_record: bool) -> ValueError:
    path = name.rpartition(":")[0]
    fix = f"read it, then name it: {_option(setting, name)}"
    fix += ", or add --trust-code" if has_record else " (an older version made the run: it has no record of its code)"
    return ValueError(
        f"{run} names code, {setting} {shown(name)!r} of {path!r} (sha256 {digest}), which you have not run from there "
        f"({_store()}). It may come from somebody else, so nothing of it was run: {fix}"
    )


def _store() -> str:
    try:
        return f"no entry in {place()}"
    except RuntimeError:
        return "there is no home that could say so"


def _option(setting: str, name: str) -> str:
    return f"--{setting} {name}" if setting in ("workload", "method") else f"-c {setting}={name}"


def _words(names: Collection[str]) -> str:
    return ", ".join(map(shown, names))
