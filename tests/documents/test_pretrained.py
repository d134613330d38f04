"""The program of docs/pretrained.md, with a tiny random GPT-2 and a small table in the places of published ones."""

import csv

import pytest
import torch

from tests.documents.blocks import blocks
from tests.places import REPOSITORY

TOPICS = {"politics": "vote law state", "science": "cell star proof", "sport": "goal race team"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model, its tokenizer, and tables of texts whose labels are words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<end>", *" ".join(TOPICS.values()).split()]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(words, range(99), strict=False)), "<end>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model = tmp_path / "model"
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>").save_pretrained(model)
    torch.manual_seed(0)
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=len(words), use_cache=False, attn_pdrop=0.0, **sizes)
    ).save_pretrained(model)
    for name, count in (("train", 60), ("test", 30)):
        rows = [[f"{TOPICS[topic]} {topic}", topic] for topic in list(TOPICS) * (count // 3)]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["text", "topic"], *rows])
    monkeypatch.chdir(tmp_path)
    return model


def test_a_model_of_hugging_face_on_a_table_with_labels_that_are_words(folder, capsys):
    (block,) = [b for b in blocks((REPOSITORY / "docs" / "pretrained.md").read_text(), "python") if "TOPICS" in b.text]
    short = 'rounds=2, sample_rate=0.5, learning_rate=0.1, engine="local"'
    text = block.text.replace("distilbert/distilgpt2", str(folder)).replace('engine="local"', short)
    assert text.count(short) == text.count(str(folder)) == 1
    exec(compile(text, "docs/pretrained.md", "exec"), {"__name__": "own_program"})
    printed = capsys.readouterr().out
    assert "embeddings are frozen under LoRA: 2,368 values; train_embeddings=true trains them" in printed
    assert printed.count("lsg 0.") + printed.count("lora 0.") + printed.count("lsg 1.") + printed.count("lora 1.") == 2
