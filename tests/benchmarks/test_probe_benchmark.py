"""The benchmark of the probe, on the smallest model."""

import pytest

from benchmarks import probe


def test_shares_are_of_all_steps_between_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BATCH", 20)
    found = probe.measure("mlp", probes=150, pairs=1, warmup=0)
    ratio = found["seconds"]["probe"] / found["seconds"]["step"]
    assert list(found["shares"]) == list(probe.A_ROUND)
    assert found["shares"][500] == pytest.approx(ratio / (500 / 20) / probe.REFRESH)
