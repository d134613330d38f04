"""Runs of a comparison are made from the same rows, and runs of a line from the same recipe.

Settings and code of two runs may be the same while a file of rows, or a file that a recipe reads,
has changed between them. A mean over both would be of neither.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlsg.simulations.planning.base.prepare import DATA_SETTINGS
from fedlsg.simulations.planning.earlier_runs.continuity import HARMLESS
from fedlsg.simulations.planning.earlier_runs.data_digest import contents_of
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.settings.settings import FOLDERS, as_config
from fedlsg.simulations.storage.run_directory import RunDir

NAMED = 6
"""The most runs that a refusal names."""
ROWS = ("training_rows", "test_rows")
"""Contents that settings of the data alone decide: all methods share them."""
FIXES = {
    "training_rows": "restore the training data (rows that are drawn at random need a fixed seed)",
    "test_rows": "restore the test data (rows that are drawn at random need a fixed seed)",
    "recipe": "restore the file, or whatever else the recipe reads",
    "model": "restore the file, or whatever else the model is built from",
}
"""What to do if one of the contents has changed; it is named by its key."""


class OtherContentsError(ValueError):
    """A cell would be made from other rows, or another recipe, than the cells before it."""


def deciding(name: str, settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The settings that decide one of the contents, by field name, as texts.

    Runs in which they are equal are made from the same, or must not be compared.
    """
    if name in ROWS:
        names = {*DATA_SETTINGS} - {*FOLDERS}
        names |= {"seed"} if settings.get("reproducible") else set()
    else:
        names = settings.keys() - HARMLESS - {"seed", "noise_multiplier"}
    return tuple((name, str(settings.get(name))) for name in sorted(names))


def check_same_contents(cells: Path, plan: Plan) -> None:
    """Raise OtherContentsError, naming what differs, if a run in the folder ``cells`` was made from
    other contents than a plan with the same settings has.
    """
    now, settings = contents_of(plan), _by_field(as_config(plan.settings))
    differing: dict[str, list[str]] = {}
    for config in sorted(cells.glob("*/config.toml")):
        run = RunDir(config.parent)
        before = run.read_contents()
        for name in [name for name in before if before[name] != now.get(name)]:
            if deciding(name, _by_field(run.read_raw_config())) == deciding(name, settings):
                differing.setdefault(name, []).append(run.path.name)
    if not differing:
        return
    name, names = next(iter(differing.items()))
    what = name.replace("_", " ")
    some = ", ".join(names[:NAMED]) + (f", {len(names) - NAMED} more" if names[NAMED:] else "")
    raise OtherContentsError(
        f"{cells.parent} holds runs that were made from another version of the {what}, and a mean "
        f"over both would be of neither: {FIXES[name]}, or give another --out, or remove the "
        f"folders of these runs in {cells}: {some}"
    )


def _by_field(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config.toml by field name."""
    return {name.replace("-", "_"): value for name, value in config.items()}
