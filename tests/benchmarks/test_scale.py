"""``benchmarks.scale``: the run of a measurement has all that is done to it afterwards."""

from benchmarks import scale


def test_a_measured_run_can_be_resumed_and_reported(tmp_path):
    found = scale.measure(200, 4, str(tmp_path))
    assert len(found["rounds"]) == 3
    assert scale.after(str(tmp_path))["page"] > 0
