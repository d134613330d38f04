"""Imports point down, between packages and between files, and there is no circle.

``LAYERS`` is the house from the ground up. Imports inside functions and for type checkers count as
well.
"""

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import fedlsg
from tests.places import REPOSITORY

LAYERS = (
    "fedlsg.randomness",
    "fedlsg.extras",
    "fedlsg.owner_only",
    "fedlsg.atomic_write",
    "fedlsg.locks",
    "fedlsg.user_lists",
    "fedlsg.bounded",
    "fedlsg.tensors",
    "fedlsg.noise",
    "fedlsg.config",
    "fedlsg.user_code",
    "fedlsg.rows",
    "fedlsg.lowrank",
    "fedlsg.frame",
    "fedlsg.gradients",
    "fedlsg.accounting",
    "fedlsg.privacy",
    "fedlsg.masks",
    "fedlsg.carriers",
    "fedlsg.training",
    "fedlsg.method",
    "fedlsg.payload",
    "fedlsg.secure_sum",
    "fedlsg.participation",
    "fedlsg.state",
    "fedlsg.attacks",
    "fedlsg.strategies.own_loop",
    "fedlsg.strategies.method_settings_typed",
    "fedlsg.strategies.recipes",
    "fedlsg.strategies",
    "fedlsg.strategies.private_step",
    "fedlsg.strategies.protocol",
    "fedlsg.strategies.strategy",
    "fedlsg.simulations.models",
    "fedlsg.simulations.workloads",
    "fedlsg.simulations.settings",
    "fedlsg.simulations.storage",
    "fedlsg.simulations.planning",
    "fedlsg.simulations.client",
    "fedlsg.simulations.report",
    "fedlsg.simulations.server",
    "fedlsg.simulations.engines",
    "fedlsg.simulations.run",
    "fedlsg.simulations.compare",
    "fedlsg.simulations.inspection",
    "fedlsg.simulations.attacks",
    "fedlsg.simulations.attacks.audit",
    "fedlsg.simulations.flower_apps",
    "fedlsg.simulations.cli",
    "fedlsg.__main__",
)
FACE = ("fedlsg", "fedlsg.flower")
"""The public face: it imports what a user needs, from wherever it is. The one exemption."""
FORBIDDEN = {
    "fedlsg.strategies": {"ray"},
    "fedlsg.simulations": {"tests", "benchmarks"},
    "fedlsg": {"flwr", "ray"},
}
"""What a part of the house never imports. Its folder has the last word of its name."""

BY_NAME = {"import_module", "__import__"}
"""Functions that import what a string names."""

Graph = Mapping[str, set[str]]


@cache
def files() -> dict[str, Path]:
    """Every file of the package by its dotted name."""
    found = {}
    for part in FORBIDDEN:
        folder = REPOSITORY / part.split(".")[-1]
        for path in folder.rglob("*.py"):
            words = (part, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(words).removesuffix(".__init__")] = path
    return found


def part_of(name: str) -> str:
    return next(part for part in FORBIDDEN if f"{name}.".startswith(f"{part}."))


def imported(source: str, known: Iterable[str]) -> set[str]:
    """What a source imports, as names of known files where they are known, else as top-level
    packages.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where they lead"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", getattr(node.func, "attr", "")) in BY_NAME
        ):
            names = [
                arg.value
                for arg in node.args[:1]
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            ]
        else:
            continue
        for name in names:
            parts = name.split(".")
            prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            found.add(next((prefix for prefix in prefixes if prefix in known), parts[0]))
    return found


@cache
def graph() -> dict[str, set[str]]:
    """Which file imports which, and which other packages."""
    known = files()
    return {name: imported(path.read_text(), known) - {name} for name, path in known.items()}


def layer(name: str) -> int:
    """The place of a file in ``LAYERS``."""
    parts = name.split(".")
    prefixes = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return max((LAYERS.index(prefix) for prefix in prefixes if prefix in LAYERS), default=-1)


def arrows_up(graph: Graph) -> list[tuple[str, str]]:
    """Imports of a higher layer. The face is above all: nothing inside imports from it."""
    return [
        (name, other)
        for name, others in graph.items()
        for other in others
        if name not in FACE and other in graph and (other in FACE or layer(other) > layer(name))
    ]


def circle(graph: Graph) -> list[str]:
    """A circle of imports, empty where there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := visit(name, []))), [])


def by_folder(graph: Graph) -> Graph:
    """The same between folders: the files of a folder without those of its sub-folders."""
    where = {name: str(path.parent.relative_to(REPOSITORY)) for name, path in files().items()}
    where |= {
        name: name for name in where if name.count(".") == 1 and files()[name].name != "__init__.py"
    }
    found: dict[str, set[str]] = {folder: set() for folder in where.values()}
    for name, others in graph.items():
        found[where[name]] |= {where[other] for other in others if other in where} - {where[name]}
    return found


def without_face(graph: Graph) -> Graph:
    """The graph inside: the face may reach anything."""
    return {name: others - {*FACE} for name, others in graph.items() if name not in FACE}


def test_no_import_points_up():
    assert arrows_up(graph()) == []


def test_every_file_has_a_layer():
    assert [
        name for name in files() if layer(name) < 0 and name not in (*FACE, "fedlsg.simulations")
    ] == []


def test_no_file_is_in_a_circle():
    assert circle(without_face(graph())) == []


def test_no_folder_is_in_a_circle():
    assert circle(by_folder(without_face(graph()))) == []


@pytest.mark.parametrize("part", FORBIDDEN)
def test_what_a_part_never_imports(part):
    wrong = {
        name: found
        for name, others in graph().items()
        if part_of(name) == part
        if (found := others & FORBIDDEN[part])
    }
    assert wrong == {}


def test_a_recipe_imports_algorithms_and_recipes_alone():
    for name, others in graph().items():
        if name.startswith("fedlsg.strategies.recipes."):
            assert all(
                part_of(other) == "fedlsg" or other.startswith("fedlsg.strategies.recipes")
                for other in others
                if other in files()
            )


def test_a_planted_arrow_up_is_found():
    planted = {**graph(), "fedlsg.lowrank": {"fedlsg.method"}}
    assert arrows_up(planted) == [("fedlsg.lowrank", "fedlsg.method")]


def test_a_planted_import_of_the_face_is_found():
    assert imported("from fedlsg import Method", files()) == {FACE[0]}
    assert arrows_up({**graph(), "fedlsg.lowrank": {FACE[0]}}) == [("fedlsg.lowrank", FACE[0])]


def test_a_planted_circle_of_files_is_found():
    planted = {**without_face(graph()), "fedlsg.masks.freezing": {"fedlsg.masks.mask"}}
    assert set(circle(planted)) == {"fedlsg.masks.freezing", "fedlsg.masks.mask"}


def test_imports_inside_functions_and_for_type_checkers_are_seen():
    source = (
        "import numpy.linalg as n\n"
        "def f():\n    from flwr.app import Message\n"
        "if TYPE_CHECKING:\n    from fedlsg.masks import Mask, freezing\n"
    )
    assert imported(source, files()) == {"numpy", "flwr", "fedlsg.masks", "fedlsg.masks.freezing"}


def test_imports_by_a_string_are_seen():
    source = 'import importlib\nimportlib.import_module("fedlsg.simulations.cli.command_line")\n__import__("flwr")\n'
    assert imported(source, files()) == {"importlib", "fedlsg.simulations.cli.command_line", "flwr"}


@pytest.mark.parametrize("name", ["strategies", "simulations.settings", "fedlsg.fedlsg"])
def test_no_module_can_be_imported_as_a_second_copy(name, monkeypatch):
    """As in a Flower bundle, where the folder of the packages is on fedlsg's own path."""
    monkeypatch.setattr(fedlsg, "__path__", [*fedlsg.__path__, str(REPOSITORY)])
    with pytest.raises(ImportError, match="expected the name"):
        import_module(name)
