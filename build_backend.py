"""Build backend (PEP 517): setuptools, except inside a Flower bundle, where there is nothing to
install.

``flwr run .`` unpacks a bundle of this repository and runs ``uv sync`` on its pyproject.toml before
every run. A list of dependencies there would be installed once more, torch first. So the list is
dynamic: it is in requirements.txt. Flower never bundles a ``.txt`` file, so a folder that has
pyproject.toml and no requirements.txt is a bundle. It runs in the environment that already runs
Flower; its metadata names no dependency, and making it asks no package index for setuptools (so a
machine without a network runs too). Everywhere else each hook is setuptools' own.
"""

import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETUPTOOLS = ["setuptools>=77"]  # the first with SPDX licence expressions
DOCUMENTATION = Path("fedlsg/simulations/documentation")
Config = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    return [] if _in_bundle() else list(SETUPTOOLS)


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Config = None
) -> str:
    if _in_bundle():
        return _bundle_metadata(Path(metadata_directory))
    return str(_setuptools().prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Config = None
) -> str:
    if _in_bundle():
        return _bundle_metadata(Path(metadata_directory))
    return str(
        _setuptools().prepare_metadata_for_build_editable(metadata_directory, config_settings)
    )


def build_wheel(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    # pip builds in the clone, and setuptools packs whatever an earlier build left there: modules
    # that are gone since.
    shutil.rmtree("build/lib", ignore_errors=True)
    with _documentation():
        return str(_setuptools().build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    # A path file in place of an import hook, which type checkers and editors do not follow.
    settings = {**(config_settings or {}), "editable_mode": "compat"}
    return str(_setuptools().build_editable(wheel_directory, settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Config = None) -> str:
    return str(_setuptools().build_sdist(sdist_directory, config_settings))


@contextmanager
def _documentation() -> Iterator[None]:
    """Copy the pages of docs/ into a package while a wheel is made, so that ``fedlsg docs`` finds
    them there.

    Text only: the Markdown pages. Folders of the site's layout (``_static``) are left out.
    """
    shutil.rmtree(DOCUMENTATION, ignore_errors=True)
    try:
        for page in sorted(Path("docs").rglob("*.md")):
            if not any(part.startswith("_") for part in page.parts):
                copy = DOCUMENTATION / page.relative_to("docs")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(page, copy)
        shutil.copyfile("CHANGELOG.md", DOCUMENTATION / "changelog.md")
        yield
    finally:
        shutil.rmtree(DOCUMENTATION, ignore_errors=True)


def _in_bundle() -> bool:
    return not Path("requirements.txt").exists()  # PEP 517: hooks run in the source tree


def _setuptools() -> Any:
    if _in_bundle():
        raise RuntimeError(
            "expected requirements.txt next to pyproject.toml; install fedlsg from a clone or an "
            "sdist"
        )
    # imported late: the hook that asks for setuptools runs without it
    from setuptools import build_meta

    return build_meta


def _bundle_metadata(directory: Path) -> str:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    dist_info = directory / f"{project['name']}-{project['version']}.dist-info"
    dist_info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    (dist_info / "METADATA").write_text("\n".join(lines) + "\n")
    return dist_info.name
