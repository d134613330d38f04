"""A cache of each test's own, and few digits to encode."""

import base64
from pathlib import Path

import numpy as np
import pytest

from fedlsg.simulations.workloads.images import digits


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDLSG_CACHE", str(folder))
    return folder


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 of the digits: each costs a millisecond."""
    images, labels = digits.read()
    test = np.arange(300) % 5 == 0
    monkeypatch.setattr(digits, "read", lambda: (images[:300], labels[:300]))
    monkeypatch.setattr(
        digits, "_TEST_ROWS", base64.b85encode(np.packbits(test).tobytes()).decode()
    )
