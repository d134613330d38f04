"""Membership attacks, one kind in each file: its ``ATTACKS`` have name, score and needs.

A new file here is a new attack; nothing else has to change.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from fedlsg.attacks.membership.answers import Attack


@cache
def membership_attacks() -> tuple[Attack, ...]:
    """Every attack, first those that need no shadow model.

    Raises ValueError for a name that two attacks have.
    """
    modules = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
    attacks = [attack for module in modules for attack in module.ATTACKS]
    names = [attack.name for attack in attacks]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two attacks are named {name!r} in {__name__}: rename one")
    return tuple(sorted(attacks, key=lambda attack: "shadows" in attack.needs))
