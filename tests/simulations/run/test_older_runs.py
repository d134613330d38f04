"""Runs that earlier versions of fedlsg began, and a kill ended: they finish, with equal epsilon.

``tests/data/runs`` has one interrupted run of each format, private and without privacy, as the
version of that format left it (``fedlsg run digits``, killed in the middle), and what the same
version made of a copy: its epsilon, and the sum of its weights. A new format adds its two runs, and
changes none.
"""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from fedlsg.simulations.storage.atomic_files import load_checkpoint, save_checkpoint
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.run_format import FORMAT
from fedlsg.simulations.storage.updates import read_model
from tests.places import REPOSITORY
from tests.simulations.support.runs import run_local

FROZEN = REPOSITORY / "tests" / "data" / "runs"
ENDED = json.loads((FROZEN / "ended.json").read_text())
PRIVATE = [name for name in ENDED if name.endswith("-private")]
PLAIN = [name for name in ENDED if name.endswith("-plain")]
LOCAL = ["run", "digits", "--clients", "3", "--rounds", "1", "--engine", "local"]


def unpacked(name, folder):
    shutil.unpack_archive(FROZEN / f"{name}.tar.xz", folder, filter="data")
    return folder / name


def test_each_format_has_its_runs():
    assert [*ENDED] == [
        f"format-{n}-{kind}" for n in range(1, FORMAT + 1) for kind in ("private", "plain")
    ]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_run_ends_with_the_epsilon_that_its_version_gave_it(name, tmp_path, fedlsg):
    run = unpacked(name, tmp_path)
    assert fedlsg("resume", str(run))[0] == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rounds"] == ENDED[name]["rounds"]
    # the accountant of format 1 was looser, by .3 %
    assert summary["epsilon_max"] == pytest.approx(ENDED[name]["epsilon"], rel=5e-3)
    assert summary["epsilon_max"] > ENDED[name]["before"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", PLAIN)
def test_a_reproducible_run_without_noise_ends_with_the_weights_of_its_version(
    name, tmp_path, fedlsg
):
    run = unpacked(name, tmp_path)
    assert fedlsg("resume", str(run))[0] == 0
    weights = load_file(run / "model.safetensors")
    assert {n: float(w.double().sum()) for n, w in weights.items()} == pytest.approx(
        ENDED[name]["weights"], abs=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE[:1])
def test_a_resumed_run_trains_further_and_another_one_starts_from_it(name, tmp_path, fedlsg):
    run, out = unpacked(name, tmp_path), tmp_path / "next"
    assert fedlsg("resume", str(run))[0] == 0
    assert fedlsg("resume", str(run), "--rounds", "6", "--epsilon", "4")[0] == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rounds"] == 6
    assert ENDED[name]["epsilon"] < summary["epsilon_max"] <= 4
    given = ["--start-from", str(run), "--rounds", "1", "--epsilon", "5"]
    asked = ["run", "digits", "--clients", "3", *given, "--out", str(out), "--engine", "local"]
    assert fedlsg(*asked)[0] == 0
    assert summary["epsilon_max"] < json.loads((out / "summary.json").read_text())["epsilon_max"]


def test_a_setting_that_did_not_exist_cannot_be_put_in(tmp_path, fedlsg):
    run = unpacked(PRIVATE[0], tmp_path)
    with (run / "config.toml").open("a") as file:
        file.write("\nperson-rows = 7\n")
    status, _, said = fedlsg("resume", str(run), width=400)
    assert status == 1
    assert "restore person-rows = unset (now 7)" in said


def test_in_the_newest_format_no_setting_is_missing(tmp_path, fedlsg):
    """One that neither the checkpoint nor config.toml names was taken out of both."""
    run = unpacked(PRIVATE[-1], tmp_path)
    path, config = run / "checkpoint" / "latest.pt", run / "config.toml"
    state = load_checkpoint(path)
    del state["plan"]["settings"]["clip-norm"]
    save_checkpoint(path, run / "checkpoint" / "previous.pt", state)
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("clip-norm ")))
    status, _, said = fedlsg("resume", str(run), width=400)
    assert status == 1
    assert "restore clip-norm = unset (now" in said


def test_a_run_with_a_setting_that_went_away_says_which_version_goes_on_with_it(tmp_path, fedlsg):
    run = unpacked(PRIVATE[-1], tmp_path)
    path, config = run / "checkpoint" / "latest.pt", run / "config.toml"
    state = load_checkpoint(path)
    state["plan"]["settings"]["old-switch"] = "fast"
    state["plan"]["fedlsg"] = "0.3.9"
    save_checkpoint(path, run / "checkpoint" / "previous.pt", state)
    config.write_text(f'old-switch = "fast"\n{config.read_text()}')
    status, _, said = fedlsg("resume", str(run), width=1000)
    assert status == 1
    assert "unknown setting 'old-switch': fedlsg 0.3.9 began the run with it" in said
    assert "Install fedlsg 0.3.9 to go on with the run (fedlsg resume)" in said
    assert f"fedlsg export {run} --unfinished" in said
    assert all(words in said for words in ("fedlsg export", "start_from", str(run / "ledger")))
    config.write_text(config.read_text().replace("old-switch", "odd-switch"))
    status, _, said = fedlsg("resume", str(run), width=1000)
    assert status == 1
    assert "Install" not in said, "the user's own mistake"


def test_another_run_goes_on_with_the_weights_and_the_ledger_of_one_that_cannot(tmp_path, fedlsg):
    run = unpacked(PRIVATE[-1], tmp_path)
    config = run / "config.toml"
    config.write_text(f'old-switch = "fast"\n{config.read_text()}')
    status, printed, _ = fedlsg("export", str(run), "--unfinished", width=400)
    assert status == 0
    assert "old-switch is no setting of this fedlsg: left out" in printed
    tensors, facts = read_model(run)
    state = load_checkpoint(run / "checkpoint" / "latest.pt")
    assert facts["round"] == state["server"]["round"] == 1
    for name, weights in state["server"]["model"].items():
        assert torch.equal(tensors[name], weights)
    spent = RunDir(run).charges.of(0).entries
    asked = [*LOCAL, "--start-from", str(run)]
    status, _, said = fedlsg(*asked, "--out", str(tmp_path / "next"), width=1000)
    assert status == 0, said
    entries = RunDir(tmp_path / "next").charges.of(0).entries
    assert [entry.noise_multiplier for entry in entries[: len(spent)]] == [
        entry.noise_multiplier for entry in spent
    ]
    assert len(entries) == len(spent) + 1


@pytest.mark.parametrize("lines", [0, 1])
def test_weights_leave_no_charge_behind(lines, tmp_path, fedlsg):
    """Without its ledger, or with a shorter one, no weights are written and no run starts."""
    run = unpacked(PRIVATE[-1], tmp_path)
    ledger = run / "ledger" / "run.jsonl"
    whole = ledger.read_text().splitlines(keepends=True)
    status, _, said = fedlsg("export", str(run), "--unfinished", width=400)
    assert status == 0, said
    ledger.write_text("".join(whole[:lines]))
    status, _, said = fedlsg("export", str(run), "--unfinished", width=400)
    assert (status, "ledger" in said) == (1, True)
    asked = [*LOCAL, "--start-from", str(run)]
    status, _, said = fedlsg(*asked, "--out", str(tmp_path / "next"), width=1000)
    assert (status, "ledger" in said) == (1, True)
    assert not (tmp_path / "next" / "ledger").exists()


def test_a_copy_of_the_weights_alone_is_known(tmp_path, fedlsg):
    run = unpacked(PRIVATE[-1], tmp_path)
    assert fedlsg("export", str(run), "--unfinished", width=400)[0] == 0
    copy = tmp_path / "copy.safetensors"
    shutil.copy(run / "model.safetensors", copy)
    asked = [*LOCAL, "--pretrained", str(copy)]
    status, _, said = fedlsg(*asked, "--out", str(tmp_path / "next"), width=1000)
    assert (status, "was trained by an earlier private step or run" in said) == (1, True)


def test_a_finished_run_has_no_unfinished_weights(tmp_path, fedlsg):
    run = run_local(tmp_path / "run").path
    status, _, said = fedlsg("export", str(run), "--unfinished", width=400)
    assert (status, "has finished: leave --unfinished out" in said) == (1, True)


def test_no_run_starts_from_one_that_has_not_finished(tmp_path, fedlsg):
    run = unpacked(PRIVATE[-1], tmp_path)
    asked = [*LOCAL, "--start-from", str(run)]
    status, _, said = fedlsg(*asked, "--out", str(tmp_path / "next"), width=1000)
    assert status == 1
    assert f"has not finished: finish it with fedlsg resume {run} first" in said


def test_a_run_of_a_newer_version_is_refused_and_stays_as_it_is(tmp_path, fedlsg):
    run = unpacked(PRIVATE[-1], tmp_path)
    path = run / "checkpoint" / "latest.pt"
    state = load_checkpoint(path)
    state["plan"] |= {"format": FORMAT + 1, "fedlsg": "9.0"}
    save_checkpoint(path, run / "checkpoint" / "previous.pt", state)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    status, _, said = fedlsg("resume", str(run), width=400)
    assert status == 1
    assert "install fedlsg 9.0" in said
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
