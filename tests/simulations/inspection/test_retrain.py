"""What noise and clip cost: against the same runs by hand, in words, and what is refused."""

from rich.console import Console

from simulations.inspection.retrain import measure_costs
from simulations.inspection.subject import subject_of_run
from tests.simulations.inspection.test_command import files_of
from tests.simulations.support.runs import run_local

QUIET = {"noise_multiplier": None}


def test_the_same_run_without_noise_and_without_both(small, tmp_path):
    """Oracle: the settings of the run under another mechanism. Nothing of the run changes."""
    settings = {
        key: small.config[key] for key in ("method", "seed", "sample-rate", "learning-rate", "rank", "sparsity")
    }
    again = [
        run_local(tmp_path / kind, **QUIET, mechanism=kind, **{k.replace("-", "_"): v for k, v in settings.items()})
        for kind in ("clip-only", "none")
    ]
    before = files_of(small.path)
    found = measure_costs(subject_of_run(str(small.path)), Console(quiet=True))
    assert files_of(small.path) == before
    assert found.with_noise == small.summary["accuracy"]
    assert (found.clip_only, found.neither) == tuple(run.summary["accuracy"] for run in again)
    assert found.standard_error is not None
    assert len({found.with_noise, found.clip_only, found.neither}) > 1  # negative control: they are not one run
