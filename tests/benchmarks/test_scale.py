"""``benchmarks.scale``: the run of a measurement has all that is done to it afterwards."""

from benchmarks import scale
from simulations import workloads


def test_a_measured_run_can_be_resumed_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(workloads, "_REGISTRY", workloads._REGISTRY)  # afterwards it is as before
    found = scale.measure(200, 4, str(tmp_path))
    assert len(found["rounds"]) == 3
    assert scale.after(str(tmp_path))["page"] > 0
