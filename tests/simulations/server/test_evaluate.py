"""Evaluation by hand, over several splits with equal weight; weights that diverge end a run with
one line.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedlsg.simulations.server.evaluate import evaluate
from fedlsg.simulations.workloads import Split
from tests.simulations.support.runs import run_local


class Signs(nn.Module):
    """Two logits from the sum of a text's real numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.widths.append(values.shape[1])
        total = (values * mask).sum(1, keepdim=True)
        return torch.cat([-total, total], dim=1)


class Texts:
    def __init__(self, texts: list[list[float]]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        picked = [torch.tensor(self.texts[row]) for row in rows]
        pad = nn.utils.rnn.pad_sequence
        return {
            "values": pad(picked, True, 7.0),
            "mask": pad([torch.ones(len(t)) for t in picked], True),
        }


def split_of(texts: list[list[float]], labels: list[int]) -> Split:
    lengths = torch.tensor([len(text) for text in texts])
    return Split(inputs=Texts(texts), labels=torch.tensor(labels), prepare=dict, lengths=lengths)


LONG_FIRST = split_of([[1.0, 1, 1, 1], [2.0], [-1.0, 3, 1], [-1.0]], [1, 1, 0, 0])


def test_evaluation_by_hand_shortest_texts_first():
    model = Signs()
    measured = evaluate(model, LONG_FIRST, device="cpu", batch_size=2)
    assert model.widths == [1, 4]  # two short texts together, two long ones together
    assert measured.accuracy == 0.75
    margins = [4.0, 2.0, -3.0, 1.0]  # of the right answer, halved: the logits are -s and s
    assert measured.loss == pytest.approx(
        sum(math.log1p(math.exp(-2 * m)) for m in margins) / 4, rel=1e-5
    )


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (
            lambda o, t: nn.functional.binary_cross_entropy_with_logits(
                o.flatten(), t.float(), reduction="none"
            ),
            "logit",
        ),
        (
            lambda o, t: nn.functional.binary_cross_entropy(
                o.sigmoid().flatten(), t.float(), reduction="none"
            ),
            "logit",
        ),
        (lambda o, t: (1 - (2 * t - 1) * o.flatten()).clamp(min=0), "margin"),
        (
            lambda o, t: nn.functional.binary_cross_entropy(
                o.flatten(), t.float(), reduction="none"
            ),
            "probability",
        ),
    ],
)
@pytest.mark.parametrize("column", [False, True])
def test_of_one_number_an_example_the_class_is_that_of_the_smaller_loss(loss, shown, column):
    """The largest of one score is always class 0: half of these four would be right."""
    numbers = torch.tensor(
        [0.9, 0.8, 0.7, 0.1] if shown == "probability" else [0.4, 2.0, 3.0, -0.2]
    )
    split = Split(
        inputs=numbers[:, None].numpy(), labels=torch.tensor([1, 1, 0, 0]), prepare=torch.from_numpy
    )
    model = nn.Identity() if column else nn.Flatten(0)
    assert evaluate(model, split, loss=loss, device="cpu").accuracy == 0.75


LARGE: dict[str, dict[str, Any]] = {
    "sgd": {"method": "sgd", "noise_multiplier": None, "learning_rate": 1e38},
    "dp": {"method": "lsg", "learning_rate": 1e38},
    "dense dp": {"method": "dpsgd", "learning_rate": 1e38},
    "momentum": {"method": "dpsgd", "learning_rate": 1e38, "momentum": 0.9},
    "adam": {"method": "lsg", "optimizer": "adam", "learning_rate": 1e38},
    "average": {"method": "lsg", "learning_rate": 1e38, "ema": 0.9},
    "late evaluation": {
        "method": "sgd",
        "noise_multiplier": None,
        "learning_rate": 1e38,
        "evaluate_every": 6,
    },
    "sparse": {"method": "lsg", "learning_rate": 1e38, "downlink": "sparse"},
    "sparse int8": {
        "method": "lsg",
        "learning_rate": 1e38,
        "downlink": "sparse",
        "downlink_codec": "int8",
    },
    "sparse noise floor": {
        "method": "lsg",
        "learning_rate": 1e38,
        "downlink": "sparse",
        "downlink_codec": "noise-floor",
    },
    "sparse sgd": {
        "method": "sgd",
        "noise_multiplier": None,
        "learning_rate": 1e38,
        "downlink": "sparse",
    },
    "local steps": {
        "method": "sgd",
        "noise_multiplier": None,
        "learning_rate": 1e38,
        "local_steps": 2,
    },
}


@pytest.mark.parametrize("kind", LARGE)
def test_too_large_a_learning_rate_ends_the_run(kind, tmp_path, with_pages):
    """At the last finite round, with the round, the setting and its value in one line."""
    run = run_local(tmp_path / "run", rounds=6, **LARGE[kind])
    rate = f"{LARGE[kind]['learning_rate']:g}"
    assert run.summary["diverged"] is True
    assert f"learning_rate={rate} is likely too large" in run.summary["stopped"]
    ended = run.summary["rounds"] + 1
    assert run.summary["stopped"].startswith(f"round {ended} left ")
    assert 1 <= ended <= 6
    assert run.directory.last_round() == ended - 1
    assert math.isfinite(run.summary["loss"]) or kind == "late evaluation", (
        "a round that nobody had looked at"
    )
    assert all(bool(w.isfinite().all()) for w in run.model.values())
    assert f"failed: round {ended} left" in (run.path / "report.html").read_text()
    assert "no report.html" not in run.log
    if run.directory.rounds.exists():
        assert [row.round for row in run.rows] == list(range(1, ended))
