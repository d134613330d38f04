"""A SuperLink is killed in the middle of a run, which docs/deployment.md, chapter 14, continues:
real processes.
"""

import json
from pathlib import Path

import pytest

from benchmarks.flower.hospitals import (
    HOSPITALS,
    KILLED,
    ROUNDS,
    RUN,
    SET_UP,
    chapters,
    copies,
    federation,
    finished_rounds,
    follow,
    ledger,
    run_folders,
)
from benchmarks.flower.machines import wait_until
from fedlsg.privacy import Entry

pytestmark = [pytest.mark.slow, pytest.mark.ray]  # a real SuperLink: minutes

FEW = 3


def test_a_run_whose_superlink_was_killed_is_continued_by_the_command_that_resume_prints(
    tmp_path: Path,
):
    with federation(tmp_path) as made:
        for block in chapters(*SET_UP):
            follow(made, block)
        (run,) = chapters(RUN)[:1]
        server = made["server"]
        server.start(run.text.replace(f"rounds = {ROUNDS}\n", f"rounds = {FEW}\n"))
        wait_until(lambda: finished_rounds(made) >= 1, lambda: f"a round:\n{server.log}", 600)
        server.kill("flower-superlink")
        before = finished_rounds(made)
        start, proceed = chapters(KILLED)
        follow(made, start)
        said = " ".join(follow(made, proceed).split())
        (folder,) = run_folders(made)
        config = folder / "config.toml"
        assert f"continue with: flwr run APP FEDERATION --run-config {config} --stream (APP" in said
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["rounds"], summary["stopped"], summary["private"]) == (FEW, None, True)
        assert before < FEW, "it was killed in the middle"
        entries: dict[str, tuple[Entry, ...]] = {
            name: ledger(made, name).entries for name in HOSPITALS
        }
        assert copies(folder) == {name: ledger(made, name).path.read_bytes() for name in HOSPITALS}
        for name in HOSPITALS:
            assert len({entry.run for entry in entries[name]}) == 1, "one run in the ledger"
            assert {entry.round for entry in entries[name]} == set(range(1, FEW + 1))
            again = [entry for entry in entries[name] if entry.attempt]
            assert all(entry.round == before + 1 for entry in again), (
                "only the interrupted round may be charged twice"
            )
