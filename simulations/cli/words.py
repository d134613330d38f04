"""What a mistyped word may have meant: options, settings, values, methods, codecs and workloads, all together."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from fedlsg.choices import MEANINGS, nearest
from fedlsg.setting import Declared
from simulations.settings.settings import all_settings

UNKNOWN = re.compile(r"unknown (?:workload|method|setting|parameter|preset) '([^']+)'|No such command '([^']+)'")


def meant_option(option: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown option."""
    word, settings = option[2:], all_settings()
    aliases = {alias: name for name, one in settings.items() for alias in one.setting.aliases}
    if (name := aliases.get(word.replace("-", "_").lower())) is not None:
        return f"; did you mean --{name.replace('_', '-')}?"
    if word + "s" in settings:  # epoch: before redraw=epoch
        return f"; did you mean --{word}s?"
    if (written := _places(settings).get(MEANINGS.get(_plain(word), _plain(word)))) is not None:
        return f"; did you mean {written}?"
    options = [*(name[2:] for name in known if name.startswith("--")), *(name.replace("_", "-") for name in settings)]
    near = nearest(word, options)
    return f"; did you mean --{near}?" if near else ""


def elsewhere(text: str) -> str:
    """What an error about an unknown word may add: that the word is one of another kind, and how to write it."""
    found = UNKNOWN.search(text)
    word = next(filter(None, found.groups()), "") if found else ""
    if not word:
        return ""
    if _is_number(word):  # the second of --seed 1 2, read as the workload
        return f"; an option takes one value: what does {word} belong to?"
    places, meant = _places(all_settings()), _plain(word)
    if near := re.search("did you mean '([^']+)'", text, re.IGNORECASE):
        return f"; or {places[meant]}?" if meant in places and _plain(near[1]) != meant else ""
    meant = meant if meant in places else nearest(word, places) or ""
    return f"; or {places[meant]}?" if meant in places else ""


def _places(settings: Mapping[str, Declared]) -> dict[str, str]:
    """How to write a word, by the word: the first kind that has it."""
    import strategies
    from fedlsg.payload import all_codecs
    from simulations import workloads

    found = {_plain(name): f"fedlsg run {name}" for name in workloads.names()}
    found |= {_plain(name): f"--codec {name}" for name in all_codecs()}
    found |= {_plain(name): f"--method {name}" for name in strategies.names()}
    for name, one in settings.items():
        for choice in one.choices:
            found.setdefault(_plain(str(choice)), f"--{name.replace('_', '-')} {choice}")
    for scheme in ("iid", "dirichlet", "shards"):
        found.setdefault(scheme, f"--partition {scheme}")
    return found | {_plain(name): f"--{name.replace('_', '-')}" for name in settings}


def _is_number(word: str) -> bool:
    with suppress(ValueError):
        return float(word) is not None
    return False


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
