"""``fedlsg`` without a command, and before its command line is imported."""

import os
import subprocess
import sys

import pytest

from simulations.cli import start
from simulations.cli.docs import STEPS


def test_no_command_shows_three_things_to_do_first(fedlsg):
    """Each with a command that exists, with options that exist; then how to see all commands."""
    status, out, err = fedlsg()
    assert (status, err) == (2, "")
    assert [line.strip() for line in out.splitlines() if line.startswith("     ")] == [step for _, step in STEPS]
    assert "fedlsg --help" in out
    for _, command in STEPS:
        _, name, *options = command.split()
        known = fedlsg(name, "--help")[1]
        assert all(option in known for option in options if option.startswith("--")), command


def test_an_interruption_during_the_import_of_the_command_line_is_one_line(monkeypatch, capsys):
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "simulations.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "simulations.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        start.main()
    assert left.value.code == 130
    assert capsys.readouterr().err == "fedlsg: error: interrupted\n"


def test_a_closed_output_is_not_called_an_interruption():
    """``fedlsg run --help | head -0``: the reader has gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    command = "from simulations.cli.app import main; import sys; sys.argv = ['fedlsg', 'run', '--help']; main()"
    try:
        ended = subprocess.run([sys.executable, "-c", command], stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "fedlsg: error: its output was closed\n")
