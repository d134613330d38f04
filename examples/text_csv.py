"""Texts from a CSV file, and a Hugging Face model trained whole: prose or code? With `local`, in
one process.
"""

import ast
import csv
import sys
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

import fedlsg

LENGTH = 32


def write_csv(path, modules):
    """Columns text, module and label: about as many lines of docstrings (1) as other lines (0) of
    each module.
    """
    rows = [["text", "module", "label"]]
    for name in modules:
        source = Path(ast.__file__).with_name(f"{name}.py").read_text()
        nodes = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        ]
        documented = {
            line.strip() for node in nodes for line in (ast.get_docstring(node) or "").splitlines()
        }
        lines = [line.strip() for line in source.splitlines() if len(line.strip()) > 20]
        prose, code = (
            [line for line in lines if (line in documented) is wanted] for wanted in (True, False)
        )
        rows += [[line, name, 1] for line in prose] + [
            [line, name, 0] for line in code[:: len(code) // len(prose) or 1]
        ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def tokenise(texts):
    """Bytes as tokens, padded to one length. A tokenizer of your model goes here, with
    padding="max_length".
    """
    ids = torch.tensor(
        [list(text.encode("ascii", "replace")[:LENGTH].ljust(LENGTH, b"\0")) for text in texts]
    )
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def model():
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    return BertForSequenceClassification(
        BertConfig(vocab_size=128, max_position_embeddings=LENGTH, **sizes)
    )


def main(engine="ray"):
    with tempfile.TemporaryDirectory() as place:
        train, test = Path(place, "train.csv"), Path(place, "test.csv")
        write_csv(train, ["argparse", "datetime", "statistics", "pathlib", "difflib"])
        write_csv(test, ["optparse", "fractions", "textwrap"])
        run = fedlsg.simulate(
            model=model,
            train=train,
            test=test,
            inputs="text",
            targets="label",
            transform=tokenise,
            engine=engine,
            loss=torch.nn.CrossEntropyLoss(),
            partition="module",
            method="lsg",
            rank=4,
            epsilon=8.0,
            rounds=8,
            sample_rate=0.3,
            optimizer="adam",
            learning_rate=0.02,
            clip_norm=0.5,
        )
    print(
        f"{run.summary['clients']} modules, accuracy {run.summary['accuracy']:.3f}, epsilon "
        f"{run.epsilon:.2f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
