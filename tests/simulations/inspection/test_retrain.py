"""What noise and clip cost: against the same runs by hand, in words, and what is refused."""

import json

import pytest
from rich.console import Console

from simulations.cli import app as cli
from simulations.inspection import subject_of_run, subject_of_settings
from simulations.inspection.command import Costs, diagnosis, finished, inspect_command, measure_costs
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


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        (
            Costs(with_noise=0.7, clip_only=0.725, neither=0.72, standard_error=0.0104, rho=0.156),
            "Accuracy 70.00 % with clip and noise (rho 0.16), 72.50 % with the clip alone, 72.00 % with neither, at "
            "the same learning rate: the noise costs 2.5 points and the clip brings 0.5 points (one seed, standard "
            "error of each accuracy 1.0 points).",
        ),
        (
            Costs(with_noise=0.7, clip_only=0.7, neither=None, standard_error=None),
            "Accuracy 70.00 % with clip and noise, 70.00 % with the clip alone, none (training fails) with neither, at "
            "the same learning rate: the noise costs 0.0 points and the clip has no known cost (one seed).",
        ),
    ],
)
def test_the_diagnosis_in_words(costs, words):
    assert diagnosis(costs) == words


@pytest.mark.slow
def test_the_command_says_and_writes_it(small, tmp_path, monkeypatch, capsys):
    known = Costs(with_noise=0.5, clip_only=0.6, neither=0.7, standard_error=0.1)
    monkeypatch.setattr("simulations.inspection.command.measure_costs", lambda subject, console: known)
    given = ["--noiseless", "--examples", "8", "--sparsities", "0", "--ranks", "1", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["fedlsg", "inspect", str(small.path), *given])
    with pytest.raises(SystemExit):
        cli.main()
    assert diagnosis(known) in " ".join(capsys.readouterr().out.split())
    written = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert written["accuracies"] == {
        "with_noise": 0.5,
        "clip_only": 0.6,
        "neither": 0.7,
        "standard_error": 0.1,
        "rho": None,
    }
    assert diagnosis(known) in (tmp_path / "out" / "inspection.html").read_text()
    inspect_command(str(small.path), {}, Console(quiet=True), out=str(tmp_path / "none"), examples=8, sparsities="0")
    assert json.loads((tmp_path / "none" / "inspection.json").read_text())["accuracies"] is None


def test_what_is_refused(stopped, tmp_path):
    """Without a run, without noise, and before the end; nothing is trained or written."""
    sgd = run_local(tmp_path / "sgd", method="sgd", rounds=1, **QUIET)
    for run, message in ((sgd.path, "mechanism 'none'"), (stopped.path, "to its last round")):
        with pytest.raises(ValueError, match=message):
            inspect_command(str(run), {}, Console(quiet=True), noiseless=True)
        assert not (run / "inspection").exists()
    with pytest.raises(ValueError, match="finished run again"):
        finished(subject_of_settings({"workload": "digits"}))
