"""Every wrong use of a private step is refused in one line, before anything is charged."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from fedlsg.strategies import recipe
from tests.strategies.own_loop import PUBLIC, batch, private_step
from tests.strategies.small_federation import model


class Mixer(nn.Module):
    """Adds the mean of the batch."""

    def forward(self, x):
        return x + x.mean(0)


def with_layer(layer: nn.Module) -> nn.Module:
    net = nn.Sequential(nn.Linear(12, 10), layer, nn.Tanh())
    net.add_module("classifier", nn.Linear(10, 3))
    return net


@pytest.mark.thinned(43)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "topk"}, "keeps back what a message leaves out"),
        ({"method": "powersgd"}, "keeps back what a message leaves out"),
        ({"method": "fedavg"}, "unknown method 'fedavg'"),
        ({"method": "dpsgd", "rank": 3}, "has no setting 'rank'"),
        ({"max_physical_batch_size": 8}, "it is 'microbatch_size' here"),
        ({"target_epsilon": 3.0}, "it is 'epsilon' here"),
        ({"max_grad_norm": 1.0}, "it is 'clip_norm' here"),
        ({"batch_size": 64}, "it is 'sample_rate' here, the share of the rows"),
        ({"poisson_sampling": True}, "leave it out: batches are Poisson samples"),
        ({"method": "dp-ssgd"}, "prune='synflow' reads the shape"),
        ({"method": "dpsgd", "noise_share": 0.5}, "noise_share=0.5"),
        ({"noise_multiplier": None}, "expected epsilon and delta, or noise_multiplier"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": None}, "expected a delta below 1 / num_examples = 0.025"),
        ({"delta": 0.5}, "expected delta=0.5 < 1 / num_examples"),
        ({"method": "sgd"}, "mechanism 'none' adds no noise"),
        ({"method": "sgd", "noise_multiplier": None, "epsilon": 3.0}, "has no epsilon"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"sample_rate": "half"}, "expected a number for sample_rate, got 'half'"),
        ({"steps": None, "epochs": "x"}, "expected a number for epochs, got 'x'"),
        ({"epsilon": "3"}, "expected a number for epsilon, got '3'"),
        ({"epsilon": 0.0}, "expected a finite epsilon=0.0 > 0"),
        ({"delta": "1e-5"}, "expected a number for delta, got '1e-5'"),
        ({"noise_multiplier": "1"}, "expected a number for noise_multiplier, got '1'"),
        ({"method": "dpsgd", "clip_norm": "1"}, "expected a number for clip_norm, got '1'"),
        ({"seed": 1.5}, "expected a seed from 0 to .*, got seed=1.5"),
        ({"ledger": 3}, "ledger=3: expected the path of a file"),
        ({"example": 3}, r"example=int: expected \(inputs, targets\)"),
        ({"probe": 3}, "probe=3: expected a function"),
        ({"learning_rate": None, "optimizer": 3}, "expected a torch optimizer"),
        ({"steps": 0}, "steps=0"),
        ({"num_examples": 0}, "num_examples=0"),
        ({"epsilon": 1e-9, "delta": 1e-12, "noise_multiplier": None}, "epsilon"),
        ({"net": with_layer(nn.BatchNorm1d(10))}, "BatchNorm"),
        (
            {"net": with_layer(spectral_norm(nn.Linear(10, 10)))},
            "the parametrization spectral_norm of weight",
        ),
        ({"net": with_layer(Mixer()), "example": PUBLIC}, "mixes examples"),
        ({"loss": "mse"}, "expected loss"),
        ({"loss": nn.MSELoss}, r"write MSELoss\(\)"),
        ({"net": model}, "expected a model, an nn.Module, got function: build it first"),
        ({"method": 3}, "method=int: expected the name of a recipe, or a fedlsg.Method"),
        (
            {"optimizer": lambda p: torch.optim.SGD(p, lr=1.0)},
            "learning_rate: your own optimizer has its own",
        ),
        ({"learning_rate": None, "optimizer": lambda p: torch.optim.LBFGS(p)}, "LBFGS"),
        (
            {"learning_rate": None, "optimizer": torch.optim.SGD(model().parameters(), lr=1.0)},
            "optimizer lacks 0.weight",
        ),
        (
            {
                "learning_rate": None,
                "optimizer": lambda p: torch.optim.SGD([*p, torch.zeros(1)], lr=1.0),
            },
            "has not",
        ),
        ({"learning_rate": None, "optimizer": lambda p: 3}, "expected a torch optimizer"),
        ({"method": recipe("dpsgd")}, "clip_norm, learning_rate: a Method has its settings"),
    ],
)
def test_a_wrong_use_is_refused_in_one_line(given, message):
    with pytest.raises(ValueError, match=message) as error:
        private_step(**{"rank": 2} | given if "method" not in given else given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda rows: batch(rows)[0], r"expected a batch function from int64 positions"),
        (lambda rows: (*batch(rows), 1), r"expected a batch function"),
        (
            lambda rows: batch(rows.repeat(2)),
            r"expected one row of inputs and targets for each position",
        ),
        (lambda rows: (batch(rows)[0], batch(rows)[1][:1]), r"share their first dimension"),
    ],
)
@pytest.mark.parametrize("example", [None, PUBLIC])
def test_a_wrong_batch_function_is_refused(wrong, message, example):
    with pytest.raises(ValueError, match=message):
        private_step(method="dpsgd", example=example, sample_rate=1.0).step(wrong)


def test_a_loss_that_averages_is_refused_before_anything_is_charged():
    step = private_step(method="dpsgd", loss=lambda o, t: F.cross_entropy(o, t))
    with pytest.raises(ValueError, match=r"one loss an example|averages over the batch"):
        step.step(batch)
    assert step._account.ledger.entries == ()


class Failing(nn.Module):
    """Calls a function in its forward pass."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(x)


FAILING = {
    "shapes": (
        {"net": with_layer(nn.Linear(9, 10))},
        r"^1 \(Linear\): takes 9 numbers a row, and gets 10 from the layers before: give it 10",
        False,
    ),
    "no such attribute": (
        {"net": with_layer(Failing(lambda x: x.nothing))},
        r"^1 \(Failing\): fails with AttributeError: .* \(test_private_step_refuses.py, line \d+: "
        r".*nothing",
        False,
    ),
    "numbers that are no rows": (
        {
            "net": with_layer(
                Failing(lambda x: nn.functional.embedding(x.long() - 10, torch.ones(3, 10)))
            )
        },
        r"^1 \(Failing\): fails with IndexError: index out of range in self "
        r"\(test_private_step_refuses.py, line",
        True,
    ),
    "a loss of an attribute": (
        {"loss": lambda o, t: F.cross_entropy(o.scores, t)},
        r"^the loss function: fails with AttributeError: .*scores.*line \d+.*on outputs floats "
        r"\(1, 3\)",
        False,
    ),
    "a loss of class numbers that the outputs lack": (
        {"loss": lambda o, t: F.cross_entropy(o, t + 5, reduction="none")},
        r"^the loss function: fails with IndexError: Target \d is out of bounds .*, line \d+",
        True,
    ),
    "a tuple for a loss of torch": (
        {"net": nn.Sequential(nn.Linear(12, 3), Failing(lambda x: (x, x)))},
        r"^CrossEntropyLoss: expected outputs that are a tensor or have .logits, got tuple: give a "
        r"function",
        False,
    ),
    "three arguments": (
        {"loss": F.gaussian_nll_loss},
        r"^gaussian_nll_loss needs 3 arguments",
        False,
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_the_cause_stands_first_and_an_example_is_proposed_only_where_it_helps(case):
    given, message, helps = FAILING[case]
    with pytest.raises(ValueError, match=message) as error:
        private_step(method="dpsgd", classifier=None, **given).step(batch)
    assert ("example=" in str(error.value)) == helps
    assert "\n" not in str(error.value)


def test_a_model_that_mixes_examples_is_refused_on_made_up_rows_before_anything_is_charged():
    step = private_step(with_layer(Mixer()), method="dpsgd")
    with pytest.raises(ValueError, match=r"1 \(Mixer\): mixes examples"):
        step.step(batch)
    assert step._account.ledger.entries == ()


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (
            lambda x: F.dropout(x, 0.5 + 0 * torch.manual_seed(0).initial_seed()),
            "torch.manual_seed",
        ),
        (
            lambda x: x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x),
            "a generator of its own",
        ),
    ],
)
def test_a_model_that_seeds_its_draws_is_refused_before_anything_is_charged(act, what):
    step = private_step(with_layer(Failing(act)), method="dpsgd")
    with pytest.raises(
        ValueError, match=rf"^1 \(Failing\): .*itself \({what}\).*remove the seed and the generator"
    ):
        step.step(batch)
    assert step._account.ledger.entries == ()


class MixerInTraining(Mixer):
    """Mixes in train mode only."""

    def forward(self, x):
        return super().forward(x) if self.training else x


@pytest.mark.thinned(1)
@pytest.mark.parametrize("example", [None, PUBLIC])
def test_a_model_that_changes_its_mode_is_checked_again(example):
    step = private_step(with_layer(MixerInTraining()).eval(), method="dpsgd", example=example)
    step.step(batch)
    step.model.train()
    with pytest.raises(ValueError, match=r"1 \(MixerInTraining\): mixes examples"):
        step.step(batch)
    assert len(step._account.ledger.entries) == 1


def test_a_model_with_adapters_is_refused():
    step = private_step(method="lora", rank=2)
    with pytest.raises(ValueError, match="has LoRA adapters already"):
        private_step(step.model, method="lora", rank=2)
