"""Texts from a CSV file and a Hugging Face model, trained whole: is a line of Python's library prose or code?

python text_csv.py          on Ray
python text_csv.py local    in this process
"""

import ast
import csv
import importlib
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

import fedlsg

LENGTH = 32  # bytes of a line


def write_csv(path, modules):
    """Columns text, module and label: about as many lines of docstrings (1) as other lines (0) of each module."""
    rows = [["text", "module", "label"]]
    for name in modules:
        source = Path(importlib.import_module(name).__file__).read_text()
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        documented = {line.strip() for node in nodes for line in (ast.get_docstring(node) or "").splitlines()}
        lines = [line.strip() for line in source.splitlines() if len(line.strip()) > 20]
        prose, code = ([line for line in lines if (line in documented) is wanted] for wanted in (True, False))
        step = max(1, len(code) // len(prose))
        rows += [[line, name, 1] for line in prose] + [[line, name, 0] for line in code[::step]]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def tokenise(texts):
    """Bytes as tokens, padded to one length. A tokenizer of your model goes here, with padding="max_length"."""
    ids = torch.tensor([list(text.encode("ascii", "replace")[:LENGTH].ljust(LENGTH, b"\0")) for text in texts])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def model():
    sizes = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(**sizes, intermediate_size=64, max_position_embeddings=LENGTH))


def main(engine="ray"):
    with tempfile.TemporaryDirectory() as place:
        train, test = Path(place, "train.csv"), Path(place, "test.csv")
        write_csv(train, ["argparse", "datetime", "statistics", "typing", "pathlib", "inspect", "difflib"])
        write_csv(test, ["optparse", "fractions", "textwrap", "unittest.case"])
        run = fedlsg.simulate(
            model=model, train=train, test=test, inputs="text", targets="label", transform=tokenise, engine=engine,
            loss=functional.cross_entropy, partition="module", method="lsg", rank=4, epsilon=8.0, rounds=12,
            sample_rate=0.3, optimizer="adam", learning_rate=0.01, clip_norm=0.5,
        )  # fmt: skip
    print(f"{run.summary['clients']} modules, accuracy {run.summary['accuracy']:.3f}, epsilon {run.epsilon:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
