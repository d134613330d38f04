"""Records of runs under secure sums: what is attacked is the sum, of rounds that revealed one."""

import pytest

from fedlsg.attacks.observation import ThreatModel
from simulations.attack.observations import open_record
from simulations.attack.target import batch_sizes
from tests.simulations.support.secure_clients import Seen, recorded_sum, run_five

SUM = ThreatModel(view="aggregate")


def given_up_first(stage: str, how: str):
    """Two clients drop out in the first round."""
    left = [2]

    def drop(at: str, client: int) -> str | None:
        if at != stage or client not in (2, 3) or not left[0]:
            return None
        left[0] -= 1
        return how

    return Seen(drop=drop)


@pytest.mark.parametrize("stage", ["unmask", *(pytest.param(s, marks=pytest.mark.slow) for s in ("masked", "agree"))])
def test_a_round_that_was_given_up_is_not_attacked(stage, tmp_path):
    """Its payloads are recorded, and stay masked."""
    settings = {"rounds": 2, "batch_size": 1, "sample_rate": None, "reproducible": True}
    run = run_five(tmp_path / "run", given_up_first(stage, "raises"), **settings)
    assert [row.answered for row in run.rows] == ["", "0 1 2 3 4"]
    assert any("round-000001" in name for name in run.payloads)
    record = open_record(str(run.path), SUM)
    assert list(batch_sizes(record)) == [2]
    (seen,) = record.pick(2, SUM)
    assert seen.values.equal(recorded_sum(run, 2).float())
    with pytest.raises(ValueError, match=r"round 1 .* revealed no sum: it was given up"):
        record.pick(1, SUM)
