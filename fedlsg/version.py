"""The version of this code: of a clone or bundle from its pyproject.toml, else of the installed package."""

import tomllib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path


def version() -> str:
    """The version of the package that this process imported."""
    return version_at(Path(__file__).resolve().parents[1])


def version_at(root: Path) -> str:
    """The version in the pyproject.toml next to the packages (clone, bundle), else that of the installed package."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        if project["name"] == "fedlsg":
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        return installed_version("fedlsg")
    except PackageNotFoundError:
        return "of no installed package"
