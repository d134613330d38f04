"""The level of isolation of a private step: the user's word, or the rule's; and in each entry of
its ledger.
"""

import pytest
import torch
from torch import nn

from fedlsg.strategies.private_step import PrivateStep
from fedlsg.user_code.library import own_code
from tests.strategies.own_loop import batch, private_step

TERMS = {
    "num_examples": 40,
    "steps": 8,
    "sample_rate": 0.25,
    "noise_multiplier": 1.5,
    "delta": 1e-3,
}


class OwnNet(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def step_of(model: nn.Module, **settings: object) -> PrivateStep:
    return PrivateStep(model, nn.CrossEntropyLoss(), **{**TERMS, **settings})  # type: ignore[arg-type]


def net(kind: type[nn.Sequential]) -> nn.Sequential:
    return kind(nn.Linear(12, 3))


def test_library_models_are_checked_and_own_ones_isolated() -> None:
    assert step_of(net(nn.Sequential)).isolation == "checked"
    deep = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    step = step_of(deep, method="lora", rank=1)
    assert step.isolation == "checked"
    assert own_code(deep) is None, "adapters are fedlsg's"
    assert step_of(net(OwnNet)).isolation == "isolated"


def test_a_loss_of_ones_own_is_isolated_with_a_library_model() -> None:
    loss = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")  # noqa: E731
    assert PrivateStep(net(nn.Sequential), loss, **TERMS).isolation == "isolated"  # type: ignore[arg-type]


def test_the_first_step_tries_own_code() -> None:
    class ByValue(OwnNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (2 if bool((x == x).all()) else 1)

    step = step_of(net(ByValue))
    assert step.isolation == "isolated"
    step.step(step.batches((torch.randn(40, 12), torch.randint(0, 3, (40,)))))
    assert step.isolation == "rows"


def test_slow_own_code_is_timed_once_and_names_the_argument(monkeypatch, caplog) -> None:
    """A Flower app makes a PrivateStep each round, and each logged a line of its own."""

    class Slow(OwnNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (2 if bool((x == x).all()) else 1)

    monkeypatch.setattr("fedlsg.strategies.own_loop.one_round.TIMED", set())
    for _ in range(2):
        step = step_of(net(Slow))
        step.step(step.batches((torch.randn(40, 12), torch.randint(0, 3, (40,)))))
    (line,) = [text for text in caplog.messages if text.startswith("isolation=rows")]
    assert "-c isolation" not in line
    if "times the time" in line:
        assert "PrivateStep(..., isolation='checked')" in line


@pytest.mark.parametrize("level", ["isolated", "rows", "checked"])
def test_a_word_goes_before_the_rule(level: str) -> None:
    assert step_of(net(OwnNet), isolation=level).isolation == level


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="expected isolation in"):
        step_of(net(OwnNet), isolation="vmap")


def test_without_a_clip_nothing_is_isolated() -> None:
    given = {"noise_multiplier": None, "delta": None, "method": "sgd"}
    assert step_of(net(OwnNet), **given).isolation == "checked"


def test_each_entry_of_the_ledger_names_the_level() -> None:
    step = private_step(method="dpsgd", isolation="rows")
    step.step(batch)
    assert [entry.isolation for entry in step._account.ledger.entries] == ["rows"]
