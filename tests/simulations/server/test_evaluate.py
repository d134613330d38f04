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
    assert measured.by_class == [(2, 1), (2, 2)]
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


def in_place(outputs, targets):
    """A metric that leaves nothing as it was, also by way of numpy."""
    found = float(outputs.sub_(outputs.logsumexp(1, keepdim=True)).exp_().amax(1).mean())
    outputs.numpy().fill(-7.0)
    targets.zero_()
    return found


def gentle(outputs, targets):
    return float(nn.functional.cross_entropy(outputs, targets))


def hostile_loss(outputs, targets):
    """Cross-entropy that changes what it is given."""
    found = nn.functional.cross_entropy(outputs["logits"], targets, reduction="none")
    outputs["logits"].neg_()
    outputs["more"][0].zero_()
    targets.zero_()
    return found


class Nested(nn.Module):
    """Scores in a dict, with other tensors of theirs."""

    def forward(self, values):
        return {"logits": values, "more": [values.view(-1)]}


SCORES = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0], [0.5, 0.0]])
SCORED = Split(inputs=SCORES.numpy(), labels=torch.tensor([0, 1, 1, 0]), prepare=torch.from_numpy)


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_metrics_and_losses_may_work_in_place(batch_size):
    """Each gets outputs and targets as they are, in any order."""
    metrics = {"first": in_place, "second": gentle, "third": in_place, "fourth": gentle}
    labels = SCORED.labels.clone()
    found = evaluate(
        Nested(), SCORED, loss=hostile_loss, metrics=metrics, device="cpu", batch_size=batch_size
    )
    right = gentle(SCORES, labels)
    assert (found.accuracy, found.loss) == (0.75, pytest.approx(right))
    assert found.metrics["second"] == found.metrics["fourth"] == pytest.approx(right)
    assert (
        found.metrics["first"]
        == found.metrics["third"]
        == pytest.approx(float(SCORES.softmax(1).amax(1).mean()))
    )
    assert torch.equal(SCORED.labels, labels)
    assert np.array_equal(SCORED.inputs, [[2.0, 0.0], [0.0, 1.0], [3.0, 1.0], [0.5, 0.0]])


def test_negative_control_metrics_that_share_their_tensors_disturb_each_other():
    outputs, targets = SCORES.clone(), SCORED.labels.clone()
    in_place(outputs, targets)
    assert gentle(outputs, targets) != pytest.approx(gentle(SCORES, SCORED.labels))


def test_the_class_of_one_number_is_found_with_a_loss_that_works_in_place():
    def loss(outputs, targets):
        found = nn.functional.binary_cross_entropy_with_logits(
            outputs.flatten(), targets.float(), reduction="none"
        )
        outputs.fill_(-9.0)
        return found

    numbers = np.array([[0.4], [2.0], [3.0], [-0.2]], dtype=np.float32)
    split = Split(inputs=numbers, labels=torch.tensor([1, 1, 0, 0]), prepare=torch.from_numpy)
    assert evaluate(nn.Identity(), split, loss=loss, device="cpu").accuracy == 0.75


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


@pytest.mark.thinned(4)
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
