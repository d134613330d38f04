"""Texts from a CSV file and a Hugging Face model, trained whole: is a line of Python's library code, or prose?

python text_csv.py          on Ray
python text_csv.py local    in this process
"""

import csv
import inspect
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

import fedlsg

LENGTH = 48


def write_csv(path, modules):
    """One line a row, label 1 for prose: comments and docstrings of modules that every Python has."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "module", "label"])
        for module in modules:
            prose = {
                line.strip()
                for _, value in inspect.getmembers(module)
                for line in (inspect.getdoc(value) or "").split("\n")
            }
            for line in Path(module.__file__).read_text().splitlines():
                if len(line.strip()) > 20:
                    rows.writerow([line.strip(), module.__name__, int(line.strip() in prose or line.strip()[0] == "#")])


def tokenise(texts):
    """Bytes as tokens, padded to one length; a tokenizer of your model goes here, with padding="max_length"."""
    rows = [list(text.encode("ascii", "replace")[:LENGTH]) for text in texts]
    ids = torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def model():
    return BertForSequenceClassification(BertConfig(128, 64, 2, 4, 128, max_position_embeddings=LENGTH, num_labels=2))


def main(engine="ray"):
    with tempfile.TemporaryDirectory() as place:
        train, test = Path(place, "train.csv"), Path(place, "test.csv")
        write_csv(train, [inspect, csv, unittest.case, unittest.mock, tempfile])
        write_csv(test, [unittest.loader, unittest.suite])
        run = fedlsg.simulate(
            model=model, train=train, test=test, inputs="text", targets="label", transform=tokenise,
            loss=functional.cross_entropy, partition="module", method="lsg", rank=4, epsilon=8.0, rounds=20,
            sample_rate=0.1, optimizer="adam", learning_rate=0.01, clip_norm=1.0, engine=engine,
        )  # fmt: skip
    print(f"{run.summary['clients']} modules, accuracy {run.summary['accuracy']:.3f}, epsilon {run.epsilon:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
