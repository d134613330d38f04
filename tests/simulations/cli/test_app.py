"""The command line: what it accepts, and that every wrong input is one line, a status that is not
0, and no trace.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedlsg.simulations.attacks.observations import device_for
from fedlsg.simulations.cli import command_line as cli
from fedlsg.simulations.cli.docs import LISTS
from fedlsg.simulations.report.terminals.progress import RoundDisplay
from fedlsg.simulations.settings.settings import Settings
from tests.fedlsg.support.pretend_cuda import pretended_cuda
from tests.places import REPOSITORY
from tests.simulations.support.runs import Run, run_local

SHORT = ("--engine", "local", "--clients", "2", "--rounds", "2", "-c", "sample_rate=0.05")
SMALL = (*SHORT, "--noise-multiplier", "2")


CLIENT_LEVEL = ("unit=client", "trust=server", "clients_per_round=6", "batch_size=20")


@pytest.mark.parametrize(
    ("clients", "changes", "rate"), [(20, CLIENT_LEVEL, "0.3"), (2, ("sample_rate=0.05",), "0.05")]
)
def test_the_head_of_a_run_has_the_rate_of_its_ledger(fedlsg, tmp_path, clients, changes, rate):
    """A client-level run said q = 1, the rate of rows within a client."""
    given = [word for change in changes for word in ("-c", change)]
    options = ("--engine", "local", "--rounds", "1", "--noise-multiplier", "2", "--out", "here")
    status, out, err = fedlsg("run", "--clients", str(clients), *given, *options)
    assert (status, err) == (0, "")
    assert f"1 rounds at q = {rate}," in " ".join(out.split())
    assert f'"sample_rate": {rate},' in (tmp_path / "here" / "ledger.jsonl").read_text()


def test_an_interrupted_run_leaves_its_page(fedlsg, with_pages, tmp_path, monkeypatch):
    """The page of the rounds so far; nothing before the first round. A resumed run replaces it."""
    real = RoundDisplay.on_round

    def stop(self, row):
        real(self, row)
        raise KeyboardInterrupt

    page = tmp_path / "here" / "report.html"
    with monkeypatch.context() as patch:
        patch.setattr(RoundDisplay, "on_round", stop)
        status, out, _ = fedlsg("run", *SMALL, "--out", "here")
    assert status == 130
    assert f"rounds so far  {page}" in out
    assert "interrupted" in page.read_text()
    status, _, err = fedlsg("resume", "here")
    assert (status, err) == (0, "")
    assert "interrupted" not in page.read_text()


def test_a_run_says_what_it_did(fedlsg, tmp_path):
    status, out, err = fedlsg(
        "run", *SMALL, "--seed", "3", "--out", "here", "--method", "rgp", "--rank", "2"
    )
    assert (status, err) == (0, "")
    run = Run(tmp_path / "here")
    words = " ".join(out.split())
    for part in (
        "digits: 2 clients with 718 to 719 examples, 2 rounds at q = 0.05, method rgp, engine "
        "local",
        "round 1/2 accuracy",
        "round 2/2 accuracy",
        "test accuracy",
        "epsilon 0.22",
        f"run directory {run.path}",
    ):
        assert part in words, (part, words)
    assert "NOT PRIVATE" not in out
    assert (run.config["rank"], run.config["seed"], run.config["method"]) == (2, 3, "rgp")
    assert json.loads(run.directory.summary.read_text())["private"] is True


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--reproducible",), "NOT PRIVATE: the noise is reproducible"),
        (("--method", "sgd"), "NOT PRIVATE: mechanism 'none' claims no epsilon"),
        (("-c", "mechanism=clip-only"), "NOT PRIVATE: mechanism 'clip-only' claims no epsilon"),
    ],
)
def test_what_is_not_private_says_so_first_and_last(options, line, fedlsg):
    status, out, _ = fedlsg("run", *(SMALL if options == ("--reproducible",) else SHORT), *options)
    assert status == 0
    lines = out.splitlines()
    assert line in lines[:2]
    assert any(text.startswith("privacy") and "NOT PRIVATE:" in text for text in lines)


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "misspelt option": (
        ("run", "--sparcity", "0.3", *SMALL),
        "(?i)no such option.*--sparcity.*--sparsity",
    ),
    "unknown workload": (
        ("run", "digitz", *SMALL),
        "unknown workload 'digitz'.*did you mean 'digits'",
    ),
    "sigma 0": (("run", *SMALL, "--noise-multiplier", "0"), "noise_multiplier=0.0 < inf"),
    "a setting of Opacus": (
        ("run", "-c", "max_grad_norm=1", *SMALL),
        "'max_grad_norm'; it is 'clip_norm' here",
    ),
    "an option of Opacus": (("run", "--max-grad-norm", "1", *SMALL), "it is --clip-norm here"),
    "misspelt setting": (
        ("run", "-c", "sparcity=0.3", *SMALL),
        "unknown setting 'sparcity'; did you mean 'sparsity'",
    ),
    "no value": (("run", "-c", "sparsity", *SMALL), "expected -c KEY=VALUE, got 'sparsity'"),
    "an attack as a command": (
        ("membership", "RUN"),
        "No such command 'membership'; did you mean fedlsg attack --membership RUN[?]$",
    ),
    "an attack on nothing": (("attack",), "--against mechanism=none .* --membership"),
    "a payload without its options": (
        ("payload", "RUN"),
        "give --round 1, --client 0, --out payload.npz$",
    ),
    "peft as a method": (("run", "digits", "--method", "peft"), "topk; fedlsg trains .*peft.md$"),
    "unknown command": (("train",), "No such command 'train'; did you mean fedlsg run[?]$"),
    "a command of other words": (
        ("sweep",),
        "No such command 'sweep'; did you mean fedlsg compare",
    ),
    "a decimal comma": (("run", "--epsilon", "8,0"), "a decimal number has a point, 8.0"),
    "missing data directory": (("run", "cifar10", "--data-dir", "no/data", *SMALL), "no/data"),
    "sigma too small to certify": (
        ("run", *SMALL, "--noise-multiplier", "0.001"),
        "no accountant certifies an epsilon for noise_multiplier=0.001 .*: give a larger noise "
        "multiplier",
    ),
    "one survivor": (
        ("run", *SMALL, "-c", "trust=secure", "-c", "min_survivors=1"),
        r"expected min_survivors >= colluders \+ 1 = 2, .* got 1: give -c min_survivors=2 or more, "
        r"at most 2",
    ),
    "epsilon out of reach": (
        ("run", *SMALL[:-4], "--epsilon", "1e-9", "-c", "sample_rate=1", "-c", "delta=1e-12"),
        "epsilon=1e-09",
    ),
    "unwritable output": (
        ("run", *SMALL, "--out", "/dev/null/run"),
        "cannot write to /dev/null/run.*another --out",
    ),
    "output is a file": (("run", *SMALL, "--out", "/dev/null"), "cannot write to /dev/null"),
    "resume nothing": (("resume", "nowhere"), "nowhere is no run directory: it does not exist"),
    "resume no run": (("resume", "."), "is no run directory: it holds no config.toml"),
    "export nothing": (("export", "nowhere"), "nowhere is no run directory: it does not exist"),
    "payload of nothing": (
        ("payload", ".", "--round", "1", "--client", "0", "--out", "x.npz"),
        "holds no config.toml",
    ),
    "payload of which round": (
        ("payload", ".", "--client", "0", "--out", "x.npz"),
        "one payload is one client's in one round: give --round 1$",
    ),
    "calibrate nothing": (("calibrate",), "give either --epsilon .* or --noise-multiplier"),
    "calibrate both": (("calibrate", "--epsilon", "1", "--noise-multiplier", "1"), "give either"),
    "calibrate two kinds": (
        ("calibrate", "--epsilon", "1", "--sample-rate", "0.1", "--epoch-batches", "9"),
        "not both",
    ),
    "calibrate q": (("calibrate", "--epsilon", "1", "--sample-rate", "2"), "sample_rate"),
    "calibrate sigma": (("calibrate", "--noise-multiplier", "nan"), "noise_multiplier"),
    "calibrate steps": (("calibrate", "--epsilon", "1", "--steps", "0"), "steps"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_input_is_one_line_and_leaves_nothing(kind, fedlsg, tmp_path):
    arguments, message = WRONG[kind]
    status, out, err = fedlsg(*arguments)
    assert status != 0
    assert re.search(message, err), err
    assert len(err.splitlines()) == 1, err
    assert err.startswith("fedlsg: error: ")
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_command_without_a_word_says_what_it_needs(fedlsg, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said, _ = fedlsg("list")
    assert status == 0
    for name in LISTS:
        assert f"fedlsg list {name}" in said
    status, _, error = fedlsg("runs")
    assert status != 0
    assert f"the folder {tmp_path / 'runs'} does not exist" in " ".join(error.split())
    (tmp_path / "runs").mkdir()
    assert "does not exist" not in fedlsg("runs")[2]  # negative control


def test_calibrate_finds_the_noise(fedlsg):
    status, out, _ = fedlsg("calibrate", "--epsilon", "3", "--sample-rate", "0.05", "--steps", "10")
    found = re.search(r"noise multiplier ([0-9.]+): epsilon ([0-9.]+) at delta 1e-05", out)
    assert status == 0
    assert found is not None
    assert 2.99 < float(found[2]) <= 3
    assert fedlsg("calibrate", "--noise-multiplier", "1")[1].startswith(
        "noise multiplier 1: epsilon 1.8"
    ), "q is 0.01"


@pytest.mark.slow
def test_the_installed_command():
    """As the entry point of the package and as a module; nothing heavy is imported before an error
    is known.
    """
    script = Path(sys.executable).with_name("fedlsg")
    if not script.exists():
        pytest.skip(f"the package is not installed next to {sys.executable}")
    for command in ([str(script)], [sys.executable, "-m", "fedlsg"]):
        done = subprocess.run(
            [*command, "run", "--rnak", "4"], capture_output=True, text=True, cwd=REPOSITORY
        )
        assert done.returncode == 2
        assert re.match("fedlsg: error: No such option.*--rnak", done.stderr)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_settings(shell, fedlsg, monkeypatch, capsys):
    assert "_FEDLSG_COMPLETE" in fedlsg("completion", shell)[1]
    asked = {
        "": f"{shell}_complete",
        "WORDS": "fedlsg run --lear",
        "CWORD": "--lear" if shell == "fish" else "2",
    }
    for name, value in asked.items():
        monkeypatch.setenv(f"COMP_{name}" if name else "_FEDLSG_COMPLETE", value)
    with pytest.raises(SystemExit):
        cli.main()
    assert "--learning-rate" in capsys.readouterr().out


COMMANDS = {
    "inspect": ["inspect", "--examples", "10"],
    "audit": ["audit", "--canaries", "20"],
    "audit training": ["audit", "--mode", "training", "--canaries", "10"],
    "attack": [
        "attack",
        "--attacks",
        "inverting-gradients,dlg,first-layer,relu-batch",
        "--seconds",
        "0.5",
    ],
    "attack without labels": ["attack", "--labels", "unknown", "--naive", "--seconds", "0.2"],
    "membership": ["attack", "--membership", "--shadows", "6"],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, without_pages: None) -> Run:
    """A run on the CPU whose batches an attack may try."""
    return run_local(
        tmp_path_factory.mktemp("recorded") / "run",
        clients=3,
        batch_size=1,
        sample_rate=None,
        record_updates=True,
    )


QUICK = ("inspect",)
CASES = [
    pytest.param(name, "auto", marks=() if name in QUICK else pytest.mark.slow) for name in COMMANDS
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "device"), [*CASES, pytest.param("inspect", "cpu", marks=pytest.mark.slow)]
)
def test_a_command_computes_where_it_is_told_to(
    command, device, recorded, fedlsg, tmp_path, monkeypatch
):
    name, *options = COMMANDS[command]
    out = str(tmp_path / "audit.json" if name == "audit" else tmp_path)
    with pretended_cuda(monkeypatch) as mode:
        status, _, errors = fedlsg(
            name, str(recorded.path), *options, "--device", device, "--out", out
        )
    assert (status, errors) == (0, "")
    assert (mode.operations > 100) == (device != "cpu")


@pytest.mark.parametrize(
    ("used", "setting", "device"),
    [
        ("cuda", "auto", "auto"),
        ("cpu", "auto", "cpu"),
        (None, "auto", "auto"),
        (None, "cpu", "cpu"),
        (None, "cuda", "auto"),
    ],
)
def test_a_record_is_read_with_the_frames_of_its_server(used, setting, device):
    """Carriers have other last digits on another device. A finished run names its server's."""
    summary = SimpleNamespace(exists=lambda: used is not None)
    run: Any = SimpleNamespace(summary=summary, read_summary=lambda: {"device": used})
    assert device_for(run, Settings(device=setting)) == device


def test_an_audit_that_cannot_begin_does_not_end_as_a_falsified_one(fedlsg):
    status, _, errors = fedlsg("audit", "--workload", "digits", "-c", "mechanism=none")
    assert status != 0
    assert "there is nothing to falsify" in errors
