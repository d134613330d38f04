"""``--device`` of the commands that look into runs, on a pretended CUDA device: no operation mixes devices."""

from types import SimpleNamespace
from typing import Any

import pytest

from simulations.attack.recorded.observations import made_on
from simulations.settings.settings import Settings
from tests.fedlsg.support.pretend_cuda import pretended_cuda
from tests.simulations.support.runs import Run, run_local

COMMANDS = {
    "inspect": ["inspect", "--examples", "10"],
    "audit": ["audit", "--canaries", "20"],
    "audit training": ["audit", "--mode", "training", "--canaries", "10"],
    "attack": ["attack", "--attacks", "inverting-gradients,dlg,first-layer,relu-batch", "--seconds", "0.5"],
    "attack without labels": ["attack", "--labels", "unknown", "--naive", "--seconds", "0.2"],
    "membership": ["attack", "--membership", "--shadows", "6"],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, without_pages: None) -> Run:
    """A run on the CPU whose batches an attack may try."""
    return run_local(
        tmp_path_factory.mktemp("recorded") / "run", clients=3, batch_size=1, sample_rate=None, record_updates=True
    )


QUICK = ("inspect",)
CASES = [pytest.param(name, "auto", marks=() if name in QUICK else pytest.mark.slow) for name in COMMANDS]


@pytest.mark.parametrize(("command", "device"), [*CASES, pytest.param("inspect", "cpu", marks=pytest.mark.slow)])
def test_a_command_computes_where_it_is_told_to(command, device, recorded, fedlsg, tmp_path, monkeypatch):
    name, *options = COMMANDS[command]
    out = str(tmp_path / "audit.json" if name == "audit" else tmp_path)
    with pretended_cuda(monkeypatch) as mode:
        status, _, errors = fedlsg(name, str(recorded.path), *options, "--device", device, "--out", out)
    assert (status, errors) == (0, "")
    assert (mode.operations > 100) == (device != "cpu")


@pytest.mark.parametrize(("used", "setting", "device"), [
    ("cuda", "auto", "auto"), ("cpu", "auto", "cpu"), (None, "auto", "auto"), (None, "cpu", "cpu"),
    (None, "cuda", "auto"),
])  # fmt: skip
def test_a_record_is_read_with_the_frames_of_its_server(used, setting, device):
    """Carriers have other last digits on another device. A finished run names its server's."""
    summary = SimpleNamespace(exists=lambda: used is not None)
    run: Any = SimpleNamespace(summary=summary, read_summary=lambda strict: {"device": used})
    assert made_on(run, Settings(device=setting)) == device
