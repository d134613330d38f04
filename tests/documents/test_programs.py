"""Every block of Python in the documents runs, those of a document in their order and with the
names of those before.

``<!-- not run: REASON -->`` in front of a block leaves it out; it must still compile.
"""

import csv
import sys
import textwrap
from types import ModuleType

import pytest
import torch

from fedlsg.gradients.calls import registry
from tests.documents.blocks import DOCUMENTS, blocks, name_of
from tests.places import REPOSITORY

ELSEWHERE = {"docs/own-loop.md": "tests/examples/test_own_loop.py"}
"""Documents whose programs another test runs."""
WITH_PROGRAMS = [
    path
    for path in DOCUMENTS
    if blocks(path.read_text(), "python") and name_of(path) not in ELSEWHERE
]
TASK = """
    import torch
    from torch import nn

    import fedlsg


    def workload():
        x, y = torch.randn(60, 4), torch.arange(60) % 2
        return fedlsg.Workload(model=lambda: nn.Linear(4, 2), train=(x[:40], y[:40]), test=(x[40:], y[40:]), loss=nn.CrossEntropyLoss())
"""
"""The module of the reader's own Flower app, which docs/flower-app.md imports."""


def run(text: str, name: str) -> dict[str, object]:
    """Run the blocks of a document as one module; returns its names. Raises what a block raises, or
    SyntaxError.
    """
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


@pytest.mark.thinned(2)
@pytest.mark.parametrize("document", WITH_PROGRAMS, ids=name_of)
def test_the_programs_of_a_document_run(document, folder, capsys):
    run(document.read_text(), "document")


TOPICS = {"politics": "vote law state", "science": "cell star proof", "sport": "goal race team"}


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """A model, its tokenizer, and tables of texts whose labels are words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<end>", *" ".join(TOPICS.values()).split()]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(dict(zip(words, range(99), strict=False)), "<end>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model = tmp_path / "model"
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>").save_pretrained(
        model
    )
    torch.manual_seed(0)
    sizes = {
        "n_positions": 64,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=len(words), use_cache=False, attn_pdrop=0.0, **sizes)
    ).save_pretrained(model)
    for name, count in (("train", 60), ("test", 30)):
        rows = [[f"{TOPICS[topic]} {topic}", topic] for topic in list(TOPICS) * (count // 3)]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["text", "topic"], *rows])
    monkeypatch.chdir(tmp_path)
    return model


@pytest.mark.slow
def test_a_model_of_hugging_face_on_a_table_with_labels_that_are_words(stand_ins, capsys):
    (block,) = [
        b
        for b in blocks((REPOSITORY / "docs" / "pretrained.md").read_text(), "python")
        if "TOPICS" in b.text
    ]
    short = 'rounds=2, sample_rate=0.5, learning_rate=0.1, engine="local"'
    text = block.text.replace("distilbert/distilgpt2", str(stand_ins)).replace(
        'engine="local"', short
    )
    assert text.count(short) == text.count(str(stand_ins)) == 1
    exec(compile(text, "docs/pretrained.md", "exec"), {"__name__": "own_program"})
    printed = capsys.readouterr().out
    assert (
        "embeddings are frozen under LoRA: 2,368 values; train_embeddings=true trains them"
        in printed
    )
    assert (
        printed.count("lsg 0.")
        + printed.count("lora 0.")
        + printed.count("lsg 1.")
        + printed.count("lora 1.")
        == 2
    )
