"""The diffs of docs/flower-app.md against the app that ``flwr new`` makes: what they add uses names
that are there, and takes away lines that are there; and its noise is what its clients accept.
"""

import ast
import builtins
import re

import pytest

import fedlsg
from tests.places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "flower-app.md").read_text()
TEMPLATE = {"Context", "Message", "torch", "Net", "msg", "context", "ClientApp"} | {
    # of its client_app.py, and of its server_app.py
    *("partition_id", "num_partitions", "batch_size", "device", "trainloader", "load_data"),
    *("ConfigRecord", "FedAvg", "grid", "arrays", "fraction_evaluate", "global_evaluate"),
}
"""Names of Flower's template (quickstart-pytorch, Flower 1.2x on) that a diff may use."""


def new_python(diff: str) -> str:
    """What a diff leaves of Python files: its lines without those that it takes away."""
    python = diff.partition(" # pyproject.toml")[0]
    kept = [line[1:] for line in python.splitlines() if not line.startswith("-")]
    # the parts of a function that a diff leaves out end where it goes on
    text = "\n".join(kept)
    client, server = text.split("# server_app.py")
    body = "\n".join(line.removeprefix("    ") for line in server.splitlines())
    return f"{client}\n{body}".replace("    ...\n)", "    **more,\n)")


def unknown_names(source: str) -> set[str]:
    """Names that a source reads and nobody defines."""
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    given = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            given |= {(one.asname or one.name).partition(".")[0] for one in node.names}
    read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return read - given - set(dir(builtins)) - TEMPLATE - {"more"}


DIFFS = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("diff", DIFFS)
def test_a_diff_is_whole(diff):
    assert unknown_names(new_python(diff)) == set()


def test_a_name_that_the_template_lacks_is_seen():
    """Negative control: the page once had a ``loader`` and a ``config`` that nobody defines."""
    diff = next(diff for diff in DIFFS if "trainloader.dataset" in diff)
    planted = diff.replace("+    config = ", "-    config = ").replace("(trainloader)", "(loader)")
    assert unknown_names(new_python(planted)) == {"config", "loader"}


@pytest.mark.parametrize("steps", [2, 6, 60])
def test_clients_of_the_page_and_of_the_example_accept_their_own_runs(steps):
    """A run of one round, one of the template's three rounds, and the example's own."""
    example = REPOSITORY / "examples" / "flower_steps" / "digits_steps" / "client_app.py"
    accepted = [
        float(number)
        for text in (PAGE, example.read_text())
        for number in re.findall(r"least_noise_multiplier=([\d.]+)", text)
    ]
    noise = fedlsg.calibrate_noise_multiplier(epsilon=8.0, delta=1e-5, sample_rate=0.3, steps=steps)
    assert len(accepted) >= 2
    assert max(accepted) <= noise
