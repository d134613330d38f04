"""A torch that Flower installed for an app is noticed; the one that came with fedlsg alone is
not.
"""

from pathlib import Path

import pytest

from fedlsg.simulations.flower_apps.client import other_torch


def add_torch(folder: Path, version: str) -> Path:
    """A folder as pip leaves one, with that version."""
    place = folder / version / f"torch-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return place.parent


def test_another_torch_is_named(tmp_path, monkeypatch):
    assert other_torch() is None
    monkeypatch.syspath_prepend(add_torch(tmp_path, "99.1.0"))
    said = other_torch() or ""
    assert "requirements brought torch 99.1.0" in said
    assert "\n" not in said


@pytest.mark.parametrize("again", [1, 2])
def test_the_same_torch_twice_is_one(again, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "sys.path", [str(add_torch(tmp_path / str(n), "99.1.0")) for n in range(again)]
    )
    assert other_torch() is None
