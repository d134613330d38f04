"""What is shipped: the Flower bundle, the wheel, and one version everywhere."""

import io
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.cli.build import build_fab_from_disk

import build_backend
from fedlsg.simulations.cli.docs import pages_of
from fedlsg.simulations.report.pages.template import LIBRARIES
from fedlsg.strategies.protocol.proofs import OUTSIDE, PARTS, identity_of, own_identity
from tests.places import REPOSITORY

ROOT = REPOSITORY
FOLDERS = ("fedlsg", *PARTS)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    data = build_fab_from_disk(ROOT)
    folder = tmp_path_factory.mktemp("bundle")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
    return data, folder


def outside(path: Path) -> bool:
    """Attacks and audit: they read what runs leave, and no run imports them."""
    parents = {str(parent) for parent in path.parents}
    return bool(parents & {"fedlsg/attacks", "simulations/attacks"})


def test_the_flower_bundle_holds_the_packages_and_nothing_else(bundle):
    data, folder = bundle
    assert len(data) < 5_000_000  # Flower takes 10 MB
    assert {path.name for path in folder.iterdir()} == {
        "fedlsg",
        "strategies",
        "simulations",
        "pyproject.toml",
        "build_backend.py",
        "LICENSE",
        ".info",
    }
    for package in FOLDERS:
        bundled = {path.relative_to(folder) for path in (folder / package).rglob("*.py")}
        assert bundled == {
            p for path in (ROOT / package).rglob("*.py") if not outside(p := path.relative_to(ROOT))
        }


def test_the_digest_covers_every_file_that_a_bundle_holds():
    """A client's terms, budget and ledger are code that must not differ; attacks and audit alone
    may.
    """
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT)
            module = name if folder == "fedlsg" else "fedlsg" / name
            assert bool(OUTSIDE.match(module.as_posix())) == outside(name), name


def test_the_bundle_is_the_same_code_as_the_clone(bundle):
    """Else a deployed client that runs a bundle would refuse a server that runs a clone of the same
    version.
    """
    _, folder = bundle
    assert identity_of(folder / "fedlsg").same(own_identity())


@pytest.mark.slow
def test_the_bundle_is_imported_from_where_it_lies(bundle):
    _, folder = bundle
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import fedlsg.simulations.server.server_app as a; "
        "import fedlsg.simulations.client.client_app; "
        "print(fedlsg.__file__, fedlsg.strategies.__file__, a.__file__, sep='\\n')"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=True)
    assert [Path(line).is_relative_to(folder) for line in done.stdout.split()] == [True, True, True]


@pytest.mark.parametrize("planted", [False, True])
def test_flower_installs_nothing_for_the_bundle_even_offline(bundle, planted, tmp_path):
    """``uv sync`` as Flower calls it. Planted mistake: requirements.txt inside; then uv must ask an
    index.
    """
    _, folder = bundle
    requirements = folder / "requirements.txt"
    if planted:
        requirements.write_text((ROOT / "requirements.txt").read_text())
    env = {**os.environ, "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cache")}
    env |= {"UV_PROJECT_ENVIRONMENT": str(tmp_path / "environment")}
    command = [sys.executable, "-m", "uv", "sync", "--python", sys.executable]
    command += ["--no-install-project", "--no-install-package", "flwr", "--inexact"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    requirements.unlink(missing_ok=True)
    (folder / "uv.lock").unlink(missing_ok=True)
    assert (done.returncode == 0) is not planted, done.stderr
    if not planted:
        (site,) = (tmp_path / "environment").glob("lib/python*/site-packages")
        assert list(site.glob("*.dist-info")) == []


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (
        re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
        == version
    )
    assert (
        re.search(r"^## \[(\d\S*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
        == version
    )


def test_the_changelog_says_what_affects_privacy():
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## [")[1]
    assert "### Affects privacy" in newest


def test_a_wheel_holds_nothing_of_an_earlier_build(tmp_path, monkeypatch):
    """``pip install .`` builds in the clone: a recipe that was deleted since would still be listed
    and run.
    """
    gone = tmp_path / "build" / "lib" / "fedlsg" / "strategies" / "recipes" / "gone.py"
    gone.parent.mkdir(parents=True)
    gone.write_text("")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("")
    (tmp_path / "CHANGELOG.md").write_text("")
    monkeypatch.chdir(tmp_path)
    found = []
    setuptools = SimpleNamespace(build_wheel=lambda *_: found.append(gone.exists()) or "fedlsg.whl")
    monkeypatch.setattr(build_backend, "_setuptools", lambda: setuptools)
    assert (build_backend.build_wheel(str(tmp_path)), found) == ("fedlsg.whl", [False])


@pytest.mark.slow
def test_the_wheel_carries_its_dependencies(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (
            archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")
        )
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    listed = [
        line
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert {re.split(r"[\[<>=]", line)[0] for line in required if "extra ==" not in line} == {
        re.split(r"[\[<>=]", line)[0] for line in listed
    }
    assert "fedlsg/py.typed" in names
    drawing = {
        f"fedlsg/simulations/report/pages/assets/{name}"
        for name in (*LIBRARIES, "page.js", "LICENSES.txt")
    }
    assert drawing < set(names)
    # what `fedlsg docs` shows
    pages = {f"fedlsg/simulations/documentation/{name}.md" for name in pages_of(ROOT / "docs")}
    assert {name for name in names if name.endswith(".md")} == pages
    assert {name.split("/")[0].split("-")[0] for name in names} == {"fedlsg"}


@pytest.mark.slow
def test_an_installed_wheel_runs_from_anywhere(installed, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import fedlsg; print(fedlsg.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(installed)
    command = [
        sys.executable,
        str(installed / "bin" / "fedlsg"),
        "run",
        "digits",
        "--engine",
        "local",
    ]
    command += ["--rounds", "2", "--clients", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").exists()
