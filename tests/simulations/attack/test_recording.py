"""What ``attack --compare`` records: settings that a method lacks are left out for it, and said."""

from rich.console import Console

import simulations.attack.recording
from simulations.attack.recording import record_all


def test_they_are_left_out_of_that_method_s_run_alone(tmp_path, monkeypatch):
    recorded = {}

    def keep(settings, folder, console, device):
        recorded[folder.name] = settings
        return str(folder)

    monkeypatch.setattr(simulations.attack.recording, "recorded", keep)
    console = Console(record=True, width=200)
    record_all(["lsg", "dpsgd"], {"rank": 4, "rounds": 1}, tmp_path, console, "cpu")
    assert (recorded["lsg"]["rank"], recorded["lsg"]["rounds"]) == (4, 1)
    assert "rank" not in recorded["dpsgd"]
    assert recorded["dpsgd"]["rounds"] == 1
    assert "rank: no setting of dpsgd, left out there" in console.export_text()
