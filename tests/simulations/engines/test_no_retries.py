"""Ray repeats no task that may draw noise: whatever the package makes of ``ray.remote`` says so itself."""

import ast

import pytest

from tests.places import REPOSITORY

ONCE = {"max_restarts": 0, "max_task_retries": 0}
"""What an actor needs; its methods inherit it."""


def repeatable(source: str) -> list[int]:
    """Lines with ``ray.remote`` that are not followed by ``.options`` with ``ONCE``."""
    tree, safe = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "options":
            given = {key.arg: getattr(key.value, "value", None) for key in node.keywords}
            if ONCE.items() <= given.items():
                safe |= {id(inner) for inner in ast.walk(node)}
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n) == "ray.remote"]
    return [node.lineno for node in made if id(node) not in safe]


def test_no_task_of_the_package_is_repeated():
    files = [path for top in ("simulations", "strategies") for path in (REPOSITORY / top).rglob("*.py")]
    sources = {str(path): path.read_text() for path in files}
    assert {path: lines for path, text in sources.items() if (lines := repeatable(text))} == {}
    assert any("ray.remote(" in text for text in sources.values())


@pytest.mark.parametrize("planted", [
    "ray.remote(W).remote()", "ray.remote(W).options(max_restarts=0).remote()", "@ray.remote\ndef f(): pass",
    "ray.remote(W).options(max_restarts=0, max_task_retries=1).remote()", "@ray.remote(num_cpus=1)\ndef f(): pass",
])  # fmt: skip
def test_a_task_that_ray_may_repeat_is_found(planted):
    assert repeatable(planted) == [1]
