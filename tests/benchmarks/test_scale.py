"""``benchmarks.speed.scale``: the run of a measurement has all that is done to it afterwards."""

from benchmarks.speed import scale


def test_a_measured_run_can_be_resumed_and_reported(tmp_path):
    folder = str(tmp_path)
    assert len(scale.process(f"measure(200, 4, {folder!r})", folder)["rounds"]) == 3
    assert scale.process(f"after({folder!r})", folder)["page"] > 0
