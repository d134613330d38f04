"""Small commands: ``fedlsg calibrate`` is not below what is spent; ``fedlsg docs``; ``fedlsg``
alone.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedlsg.accounting import calibrate_noise_multiplier, epsilon
from fedlsg.simulations.cli import docs, start
from fedlsg.simulations.cli.command_line import app
from fedlsg.simulations.cli.docs import STEPS
from tests.places import REPOSITORY

OF_EPOCH = 50


def printed(*given: str) -> tuple[float, float, str]:
    """(noise multiplier, epsilon, everything) that the command prints."""
    done = CliRunner().invoke(app, ["calibrate", "--delta", "1e-5", *given], standalone_mode=False)
    assert done.exception is None
    found = re.search(r"noise multiplier ([\d.]+): epsilon ([\d.]+) at", done.output)
    assert found is not None
    return float(found[1]), float(found[2]), done.output


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (50, 1), (51, 2), (149, 3), (2400, 48)])
def test_epsilon_of_shuffled_batches_is_that_of_the_epochs_begun(steps, epochs):
    given: list[Any] = ["--steps", steps, "--epoch-batches", OF_EPOCH, "--noise-multiplier", 8.0]
    _, found, said = printed(*map(str, given))
    true = epsilon(sample_rate=1.0, noise_multiplier=8.0, steps=epochs, delta=1e-5).upper
    assert true <= found < true + 1e-4
    assert f"{epochs} epochs, zero-out, no" in " ".join(said.split())
    if epochs > 1:  # control: whole epochs alone would claim less
        assert (
            found
            > epsilon(sample_rate=1.0, noise_multiplier=8.0, steps=epochs - 1, delta=1e-5).upper
        )


def test_shuffled_batches_are_not_amplified():
    given = ["--steps", "100", "--epoch-batches", str(OF_EPOCH), "--epsilon", "3"]
    sigma, found, _ = printed(*given)
    assert sigma == pytest.approx(
        calibrate_noise_multiplier(epsilon=3.0, delta=1e-5, sample_rate=1.0, steps=2), rel=1e-4
    )
    assert found <= 3.0
    poisson, _, _ = printed(*given[:2], *given[4:], "--sample-rate", "0.02")
    assert poisson < 0.7 * sigma


@pytest.mark.parametrize("target", [0.5, 1.0, 2.0, 4.0])
def test_what_is_printed_is_never_less_than_what_is_spent(target):
    """The noise multiplier as it is printed keeps the target, and the epsilon next to it is not
    below what it costs.
    """
    given = ["--steps", "100", "--sample-rate", "0.05"]
    sigma, found, _ = printed(*given, "--epsilon", str(target))
    spent = epsilon(sample_rate=0.05, noise_multiplier=sigma, steps=100, delta=1e-5).upper
    assert spent <= found <= target + 1e-4
    assert spent <= target


def test_no_command_shows_three_things_to_do_first(fedlsg):
    """Each with a command that exists, with options that exist; then how to see all commands."""
    status, out, err = fedlsg()
    assert (status, err) == (2, "")
    assert [line.strip() for line in out.splitlines() if line.startswith("     ")] == [
        step for _, step in STEPS
    ]
    assert "fedlsg --help" in out
    for _, command in STEPS:
        _, name, *options = command.split()
        known = fedlsg(name, "--help")[1]
        assert all(option in known for option in options if option.startswith("--")), command


def test_an_interruption_during_the_import_of_the_command_line_is_one_line(monkeypatch, capsys):
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "fedlsg.simulations.cli.command_line":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "fedlsg.simulations.cli.command_line")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        start.main()
    assert left.value.code == 130
    assert capsys.readouterr().err == "fedlsg: error: interrupted\n"


def test_a_closed_output_ends_a_command_without_words():
    """``fedlsg run --help | head -0``: the reader has gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    command = (
        "from fedlsg.simulations.cli.command_line import main; import sys; sys.argv = ['fedlsg', 'run', '--help']; "
        "main()"
    )
    try:
        ended = subprocess.run(
            [sys.executable, "-c", command], stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


PAGES = {file.stem for file in (REPOSITORY / "docs").glob("*.md")} | {"changelog"}


@pytest.mark.slow
def test_no_message_points_to_a_file_of_the_clone():
    """Strings of the program, without docstrings and comments: a user of pip has no docs/
    folder.
    """
    code = [
        file
        for name in ("fedlsg", "strategies", "simulations")
        for file in (REPOSITORY / name).rglob("*.py")
    ]
    pointing = {file.name: found for file in code if (found := messages(file.read_text()))}
    assert pointing == {}
    assert messages('raise ValueError("see docs/settings.md")') == ["docs/settings.md"], (
        "negative control"
    )


def messages(code: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(code)))
    described = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (
        node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in described
    )
    return [
        name
        for text in texts
        if isinstance(text, str)
        for name in re.findall(r"docs/[\w-]+\.md", text)
    ]


def test_every_page_that_a_message_names_exists():
    files = [
        file for file in (REPOSITORY / "simulations").rglob("*.py") if file != Path(docs.__file__)
    ]
    named = {
        name
        for file in files
        for name in re.findall(r"fedlsg docs ([a-z][\w-]*)", file.read_text())
    }
    assert {"attacks", "layers", "methods"} <= named
    assert named - {"lists"} <= PAGES
