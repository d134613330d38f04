"""Every block of Python in the documents runs, those of a document in their order and with the names of those before.

``<!-- not run: REASON -->`` in front of a block leaves it out; it must still compile.
"""

import sys
import textwrap
from types import ModuleType

import pytest

from fedlsg.gradients.calls import registry
from tests.documents.blocks import DOCUMENTS, blocks, name_of

ELSEWHERE = {"docs/own-loop.md": "tests/examples/test_own_loop.py"}
"""Documents whose programs another test runs."""
WITH_PROGRAMS = [path for path in DOCUMENTS if blocks(path.read_text(), "python") and name_of(path) not in ELSEWHERE]
TASK = """
    import torch
    from torch import nn

    import fedlsg


    def workload():
        x, y = torch.randn(40, 4), torch.arange(40) % 2
        return fedlsg.Workload(model=lambda: nn.Linear(4, 2), train=(x, y), test=(x, y), loss=nn.CrossEntropyLoss())
"""
"""The module of the reader's own Flower app, which docs/flower-app.md imports."""


def run(text: str, name: str) -> dict[str, object]:
    """Run the blocks of a document as one module; returns its names. Raises what a block raises, or SyntaxError."""
    module = ModuleType(name)
    sys.modules[name] = module  # dataclasses and type hints look for their module
    try:
        for number, block in enumerate(blocks(text, "python"), 1):
            code = compile(block.text, f"{name}, block {number}", "exec")
            if not block.reason:
                exec(code, vars(module))
    finally:
        del sys.modules[name]
    return vars(module)


@pytest.fixture
def folder(tmp_path, monkeypatch, own_code):
    """Where a reader would sit: a folder with the modules that the documents speak of."""
    (tmp_path / "my_app").mkdir()
    (tmp_path / "my_app" / "task.py").write_text(textwrap.dedent(TASK))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})  # docs/layers.md registers a layer
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("my_app.task", "my_app"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("document", WITH_PROGRAMS, ids=name_of)
def test_the_programs_of_a_document_run(document, folder, capsys):
    run(document.read_text(), "document")
