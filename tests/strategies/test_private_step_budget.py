"""Budget belongs to data: who goes on from trained weights needs their ledger, and runs on the same
rows add up.
"""

import copy
import gc
import io
import math
import pickle
import warnings

import pytest
import torch
from torch import nn

import fedlsg
from fedlsg.accounting import Event, compose
from fedlsg.privacy import BudgetError, trained_weights
from fedlsg.privacy.data_record import SpentTogetherWarning
from tests.strategies.own_loop import EXAMPLES, INPUTS, TARGETS, batch, private_step
from tests.strategies.small_federation import model


def rows():
    """New rows, that no other test has read."""
    return INPUTS.clone(), TARGETS.clone()


def trained(steps=1, **given):
    step = private_step(**{"method": "dpsgd"} | given)
    batches = step.batches(rows())
    for _ in range(steps):
        step.step(batches)
    return step


def loaded(state):
    net = model()
    net.load_state_dict(state)
    return net


def through_a_file(value, **how):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **how)


def clamped(net):
    with torch.no_grad():
        for p in net.parameters():
            p.clamp_(-0.05, 0.05)
    return net


def reset(net):
    for p in net.parameters():
        nn.init.normal_(p)
    return net


def replaced_head(net):
    net.classifier = nn.Linear(10, 3)
    return net


def last_copy(step):
    return copy.deepcopy(step.model)


def average(step):
    with step.evaluated() as net:
        return copy.deepcopy(net)


def earlier_copy(step):
    """One that was taken in the middle."""
    kept = copy.deepcopy(step.model)
    for _ in range(3):
        step.step(batch)
    return kept


def without_its_step(step):
    """The step, and the model that it trained, are gone."""
    kept = loaded(through_a_file(step.model.state_dict()))
    del step
    gc.collect()
    return kept


FROM = {
    "the model": lambda step: step.model,
    "clamped in place": lambda step: clamped(step.model),
    "initialised in place": lambda step: reset(step.model),
    "loaded in place": lambda step: (step.model.load_state_dict(model().state_dict()), step.model)[
        1
    ],
    "half and back": lambda step: step.model.half().float(),
    "double": lambda step: step.model.double(),
    "another head": lambda step: replaced_head(step.model),
    "a copy": last_copy,
    "a copy of the middle": earlier_copy,
    "a copy that outlives all": without_its_step,
    "a copy of another head": lambda step: replaced_head(last_copy(step)),
    "a copy in float64": lambda step: last_copy(step).double(),
    "a frozen copy with a new head": lambda step: replaced_head(
        last_copy(step).requires_grad_(False)
    ),
    "a pickled model": lambda step: pickle.loads(pickle.dumps(step.model)),
    "a saved model": lambda step: through_a_file(step.model, weights_only=False),
    "a loaded state": lambda step: loaded(step.model.state_dict()),
    "a file": lambda step: loaded(through_a_file(step.model.state_dict())),
    "the average": average,
    "a copy of torch's average": lambda step: (
        torch.optim.swa_utils.AveragedModel(step.model).module
    ),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", FROM)
def test_going_on_from_trained_weights_is_refused_without_their_ledger(name, tmp_path):
    step = trained(**{"ema": 0.9} if name == "the average" else {})
    net = FROM[name](step)
    del step
    with pytest.raises(
        ValueError, match=r"was trained by an earlier private step.*ledger=PATH.*fresh_data=True"
    ):
        private_step(net, method="dpsgd")
    with pytest.raises(ValueError, match="was trained by"):
        private_step(net, method="dpsgd", ledger=tmp_path / "new.jsonl")
    again = private_step(net, method="dpsgd", fresh_data=True)
    assert again.epsilon() == 0.0


@pytest.mark.parametrize("name", ["a copy", "the model"])
@pytest.mark.parametrize("planted", ["_DIGESTS", "_PARAMETERS"])
def test_a_planted_mistake_is_found(planted, name, monkeypatch, tmp_path):
    monkeypatch.setattr(trained_weights, planted, {})
    net = clamped(FROM["the model"](trained())) if name == "the model" else last_copy(trained())
    kept = {"_DIGESTS": "the model", "_PARAMETERS": "a copy"}[planted] == name
    monkeypatch.setattr(trained_weights, planted, {})  # it forgets, and so does the user's list
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    if kept:
        with pytest.raises(ValueError, match="was trained by"):
            private_step(net, method="dpsgd")
    else:
        private_step(net, method="dpsgd")


def test_weights_that_come_between_the_steps_are_refused_before_a_charge():
    step, other = private_step(model(), method="dpsgd"), trained()
    step.model.load_state_dict(other.model.state_dict())
    with pytest.raises(ValueError, match="was trained by"):
        step.step(batch)
    assert step.epsilon() == 0.0
    step = trained()
    spent = step.epsilon()
    step.model.load_state_dict(other.model.state_dict())
    with pytest.raises(ValueError, match="was trained by"):
        step.step(batch)
    assert step.epsilon() == spent


def test_two_steps_on_one_model_need_one_ledger(tmp_path):
    net = model()
    first, second = private_step(net, method="dpsgd"), private_step(net, method="dpsgd")
    first.step(batch)
    with pytest.raises(ValueError, match="was trained by"):
        second.step(batch)
    net, given = model(), {"method": "dpsgd", "ledger": tmp_path / "ledger.jsonl"}
    first, second = private_step(net, **given), private_step(net, **given)
    for step in (first, second, first):
        step.step(batch)
    assert len(first._account.ledger.entries) == 3


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "how",
    [
        "new weights",
        "same ledger",
        "another ledger, other data",
        "nothing trained",
        "rolled back",
        "clamped between steps",
    ],
)
def test_what_is_accounted_or_new_is_accepted(how, tmp_path):
    net, ledger = model(), {"same ledger": "first.jsonl"}.get(how)
    others = {}
    if how == "another ledger, other data":
        ledger, others = "second.jsonl", {"fresh_data": True}
    lasting = None if ledger is None else tmp_path / "first.jsonl"
    step = private_step(net, method="dpsgd", ledger=lasting)
    before = copy.deepcopy(net.state_dict())
    if how != "nothing trained":
        step.step(batch)
    if how in ("rolled back", "clamped between steps"):
        net.load_state_dict(before if how == "rolled back" else clamped(net).state_dict())
        step.step(batch)
        return
    second = private_step(
        model() if how == "new weights" else net,
        method="dpsgd",
        ledger=None if ledger is None else tmp_path / ledger,
        **others,
    )
    second.step(batch)
    assert len(second._account.ledger.entries) == (2 if how == "same ledger" else 1)


def on_a_ledger(folder):
    """A step of three charges on a file, and a copy of the file after the first one."""
    step = trained(ledger=folder / "first.jsonl")
    (folder / "cut.jsonl").write_bytes((folder / "first.jsonl").read_bytes())
    for _ in range(2):
        step.step(batch)
    return step


@pytest.mark.parametrize("where", ["the model", "a copy", "half precision", "a later process"])
def test_a_ledger_without_the_charges_of_the_weights_is_refused(where, tmp_path, monkeypatch):
    """A new one, one that was deleted, or cut. Its epsilon was that of the new steps alone."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    step = on_a_ledger(tmp_path)
    net = step.model if where == "the model" else copy.deepcopy(step.model)
    if where == "half precision":
        net.half().float()
    if where == "a later process":
        step.state_dict()
        monkeypatch.setattr(trained_weights, "_DIGESTS", {})
    first, moved = tmp_path / "first.jsonl", tmp_path / "moved.jsonl"
    moved.write_bytes(first.read_bytes())
    for ledger in (first, moved):  # a file is known by its entries, and not by its name
        private_step(net, method="dpsgd", ledger=ledger)
    refused = r"was trained by an earlier .* with ledger='.*first.jsonl'"
    for name in ("new.jsonl", "cut.jsonl"):
        with pytest.raises(ValueError, match=refused + ", which this one would not count"):
            private_step(net, method="dpsgd", ledger=tmp_path / name)
        private_step(net, method="dpsgd", ledger=tmp_path / name, fresh_data=True)
    first.write_bytes((tmp_path / "cut.jsonl").read_bytes())
    with pytest.raises(ValueError, match=refused + ", which has lost their entries"):
        private_step(net, method="dpsgd", ledger=first)


def test_a_planted_ledger_that_counts_all_is_found(tmp_path, monkeypatch):
    """The negative control: as it was, any two files were accepted."""
    net = on_a_ledger(tmp_path).model
    monkeypatch.setattr(fedlsg.Ledger, "has", lambda own, head: True)
    private_step(net, method="dpsgd", ledger=tmp_path / "new.jsonl")


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "given",
    [
        {"method": "lora", "rank": 2},
        {"method": "linear-probe"},
        {"method": "sparse-dpsgd", "sparsity": 0.9},
        {"method": "dp-ssgd", "prune": "random"},
        {"method": "lsg", "rank": 2, "sparsity": 0.5},
    ],
)
def test_a_new_model_of_the_same_seed_is_no_false_alarm(given):
    """What the first one left as it was, its frozen layers or its zeros, is no training."""
    for _ in range(3):
        trained(**given, steps=2)


def test_epsilon_of_data_adds_up_what_each_step_leaves_out():
    data = rows()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(3):
            step = private_step(method="dpsgd")
            batches = step.batches(data)
            step.step(batches)
            step.step(batches)
            assert [type(w.message) for w in caught] == [SpentTogetherWarning] * (number > 0)
    assert caught[0].filename == __file__
    events = [Event(sample_rate=0.25, noise_multiplier=1.5, steps=6)]
    assert fedlsg.epsilon_of_data(data) == pytest.approx(compose(events, delta=1e-3).upper)
    assert step.epsilon() < fedlsg.epsilon_of_data(data)
    assert fedlsg.epsilon_of_data(rows()) == 0.0


@pytest.mark.filterwarnings("error::fedlsg.privacy.data_record.SpentTogetherWarning")
def test_one_ledger_for_the_rows_counts_once_and_warns_nobody(tmp_path):
    data = rows()
    for _ in range(2):
        step = private_step(method="dpsgd", ledger=tmp_path / "ledger.jsonl")
        step.step(step.batches(data))
    assert step.epsilon() == pytest.approx(fedlsg.epsilon_of_data(data))


def test_folds_add_up():
    data = torch.utils.data.TensorDataset(*rows())
    for fold in range(4):
        kept = [row for row in range(EXAMPLES) if row % 4 != fold]
        step = private_step(method="dpsgd", num_examples=len(kept))
        step.step(step.batches(torch.utils.data.Subset(data, kept)))
    events = [Event(sample_rate=0.25, noise_multiplier=1.5, steps=4)]
    assert fedlsg.epsilon_of_data(data) == pytest.approx(compose(events, delta=1e-3).upper)


def test_a_function_of_positions_is_seen_through():
    inputs, targets = rows()
    step = private_step(method="dpsgd")
    step.step(lambda positions: (inputs[positions], targets[positions]))
    assert fedlsg.epsilon_of_data((inputs, targets)) == pytest.approx(step.epsilon())


def test_reproducible_steps_have_no_epsilon():
    data = rows()
    step = private_step(method="dpsgd", reproducible=True)
    step.step(step.batches(data))
    assert step.epsilon() == fedlsg.epsilon_of_data(data) == math.inf


def test_a_step_after_the_last_planned_one_says_so_first():
    step = private_step(method="dpsgd", steps=2, epsilon=3.0, noise_multiplier=None)
    rows = step.batches((INPUTS, TARGETS))
    for _ in range(2):
        step.step(rows)
    with pytest.raises(BudgetError, match=r"^all steps=2 that the noise was planned"):
        step.step(rows)
    # the control: a budget that ends before the planned steps is not about them
    early = private_step(method="dpsgd", steps=40, epsilon=1.0, noise_multiplier=1.5)
    rows = early.batches((INPUTS, TARGETS))

    def take_all() -> None:
        for _ in range(40):
            early.step(rows)

    with pytest.raises(BudgetError, match=r"^this step would pass the privacy budget"):
        take_all()


def test_a_step_shows_what_it_is_and_what_it_has_spent():
    """Numbers of its own properties: an address says nothing."""
    step = private_step(method="dpsgd", noise_multiplier=None, epsilon=4.0)
    before = repr(step)
    assert f"0 of {step.steps} steps, epsilon 0 of 4 at delta" in before
    step.step(batch)
    shown = repr(step)
    assert shown.startswith("PrivateStep(method='dpsgd', ")
    assert f"sigma={step.noise_multiplier:.4g}, q={step.sample_rate:.4g}" in shown
    assert f"1 of {step.steps} steps, epsilon {step.epsilon():.4g} of 4" in shown
