"""The rule of the levels of isolation, and what an entry of the ledger says of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlsg.accounting import compose
from fedlsg.config.isolation import Isolation, Wanted
from fedlsg.gradients.isolation.levels import LEVELS, resolve, slow_word
from fedlsg.gradients.isolation.trial import least_slowdown
from fedlsg.privacy import Entry, Ledger
from fedlsg.privacy.ledger_entry import decode_entry, encode_entry


class OwnNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def never() -> Isolation:
    pytest.fail("nothing is tried for library code, nor for a level that was given")


def own_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean(1)


@pytest.mark.parametrize("wanted", LEVELS)
def test_a_word_of_the_user_goes_before_the_rule(wanted: Wanted) -> None:
    assert resolve(OwnNet(), own_loss, wanted, never) == wanted


@pytest.mark.parametrize("tried", ["isolated", "rows"])
def test_library_code_is_checked_and_own_code_is_tried(tried: Isolation) -> None:
    library = nn.Sequential(nn.Linear(3, 2))
    assert resolve(library, nn.MSELoss(), "auto", never) == "checked"
    assert resolve(OwnNet(), nn.MSELoss(), "auto", lambda: tried) == tried
    assert resolve(library, own_loss, "auto", lambda: tried) == tried


def test_a_slow_level_names_the_word_that_avoids_it() -> None:
    option = "PrivateStep(..., isolation='checked')"
    assert slow_word("isolated", 2.0, option) == slow_word("isolated", None, option) == ""
    assert slow_word("rows", None, option, "because") == "one pass for each example; because"
    assert "about 33 times" in slow_word("rows", 33.1, option)
    assert f"give {option} only if" in slow_word("rows", 33.1, option)


@pytest.mark.parametrize(
    ("measured", "least", "calls"),
    [((1810.2, 1.9), 1.9, 2), ((60.0, 3.6, 2.5), 2.5, 3), ((1.5,), 1.5, 1), ((None,), None, 1)],
)
def test_a_slowdown_that_is_reported_was_measured_more_than_once(measured, least, calls) -> None:
    """The first value is of a pass that also compiled, on a busy machine."""
    times = list(measured)
    assert least_slowdown(lambda: times.pop(0)) == least
    assert len(times) == len(measured) - calls


ENTRY = Entry(
    client=0,
    round=1,
    attempt=0,
    steps=2,
    sample_rate=0.2,
    noise_multiplier=2.0,
    clip_norm=1.0,
    num_examples=100,
    mechanism="dp",
)


def test_a_line_names_a_level_that_is_not_checked_and_costs_the_same(tmp_path: Path) -> None:
    assert not {"isolation", "batched"} & encode_entry(ENTRY).keys(), (
        "older lines stay as they were"
    )
    assert decode_entry(encode_entry(ENTRY)).isolation == "checked"
    other = replace(ENTRY, round=2, isolation="rows", batched=True)
    assert decode_entry(json.loads(json.dumps(encode_entry(other)))) == other
    both, same = (Ledger(tmp_path / f"{name}.jsonl", client=0) for name in ("both", "same"))
    for ledger, second in ((both, other), (same, replace(ENTRY, round=2))):
        ledger.charge(ENTRY)
        ledger.charge(second)
    assert compose(both.events(), delta=1e-5).upper == compose(same.events(), delta=1e-5).upper


@pytest.mark.parametrize(
    "changes", [{"isolation": "auto"}, {"isolation": 1}, {"batched": 1}], ids=str
)
def test_an_entry_has_a_level_or_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(ENTRY, **changes)  # type: ignore[arg-type]
