"""The start's benchmark: what it sees of processes and files, and its tables, on commands that take a second."""

import sys
from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.import_times import LINE, import_table
from benchmarks.process_watch import Seen, watch

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def spinning(seconds: float) -> str:
    return f"import time\nwhile time.process_time() < {seconds}: pass"


@linux
def test_cpu_seconds_of_children_are_counted_and_of_others_not():
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spinning(0.6)!r}])"
    seen = watch([sys.executable, "-c", code])
    assert seen.status == 0
    assert 0.5 < seen.cpu < 1.5
    assert len([p for p in seen.processes if p.cpu > 0.4]) == 1
    assert seen.cpu_by(0.0) < 0.1 < seen.cpu_by(seen.wall) <= seen.cpu
    idle = watch(["sleep", "0.3"])  # negative control: this process works on meanwhile
    assert idle.cpu < 0.1 < idle.wall


@linux
def test_an_orphan_is_still_seen():
    code = "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 0.1; sleep 0.7 & exit'], start_new_session=True)"
    seen = watch([sys.executable, "-c", f"{code}\nimport time; time.sleep(1)"])
    assert any(process.command == "sleep 0.7" and process.last - process.started > 0.3 for process in seen.processes)


@linux
def test_a_mapped_library_and_a_failure_are_noted():
    seen = watch(
        [sys.executable, "-c", "import numpy, time; time.sleep(0.3); raise SystemExit(3)"], libraries=["numpy"]
    )
    assert seen.status == 3
    (at,) = [p.mapped["numpy"] for p in seen.processes if p.mapped]
    assert 0 < at < seen.wall


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -P -m simulations run digits", "command line"),
        ("python -P x/processes.py superlink", "SuperLink"),
        ("python -P x/flower_processes.py client", "flwr run"),
        ("ray::ClientAppActor.run", "workers, before"),
        ("ray::Worker.answer", "workers"),
        ("/x/gcs_server --log_dir=a", "Ray: gcs"),
        ("ray::RuntimeEnvAgent", "Ray: agents"),
        ("sleep 1", "other"),
    ],
)
def test_roles(command, expected):
    """Those of this checkout, and of an earlier one that it is compared with."""
    assert startup.role(command) == expected


def test_marks_are_noted_once_when_they_first_show(tmp_path: Path):
    marks = startup.Marks(tmp_path)
    marks.look(1.0)
    assert marks.at == {}
    (tmp_path / "config.toml").touch()
    (tmp_path / "rounds.csv").write_text("round\n")
    (tmp_path / "report.html").touch()
    marks.look(2.0)
    (tmp_path / "rounds.csv").write_text("round\n1\n")
    marks.look(3.0)
    assert marks.at == {"plan made": 2.0, "report": 2.0, "first round": 3.0}


def test_tables_and_gains_by_hand():
    def run(wall: float) -> dict[str, dict[str, float]]:
        both = {"plan made": wall / 2, "first round": wall, "end": wall}
        return {"wall": both, "cpu": both, "roles": {"SuperLink": wall}}

    found = {"before": [run(4.0), run(6.0), run(5.0)], "after": [run(2.0), run(3.0), run(2.5)]}
    assert "| first round | 5.00 (4.00 to 6.00) |" in startup.timeline(found)
    assert "| SuperLink | 5.00 (4.00 to 6.00) | 2.50 (2.00 to 3.00) |" in startup.roles(found)
    assert startup.gains(found)["first round, wall"].median == 0.5


def test_of_processes_takes_the_first_start_and_the_last_torch():
    def process(command: str, started: float, **mapped: float) -> Seen:
        return Seen(pid=1, command=command, started=started, last=started + 9, cpu=0.0, mapped=dict(mapped))

    class Run:
        processes = (
            process("ray::Worker", 5.0, libtorch_cpu=6.0),
            process("ray::Worker", 4.0, libtorch_cpu=7.0),
            process("/x/gcs_server ", 1.0),
        )

    marks = startup.of_processes(Run())  # type: ignore[arg-type]
    assert marks == {
        "Ray begins": 1.0, "workers begin": 4.0, "workers have torch": 7.0,
    }  # fmt: skip


def test_import_lines_are_read():
    text = "import time:       120 |        300 |     torch._C\nimport time: self [us] | cumulative | imported package"
    assert LINE.findall(text) == [("120", "torch._C")]
    found = {"cpu": 1.0, "packages": {"torch": 0.5}}
    assert "| `import torch` | 1.00 | torch 0.50 |" in import_table({"now": {"import torch": found}})
