"""Weights that were trained are recognised, and no others."""

import copy

import pytest
import torch
from torch import nn

from fedlsg.privacy import trained_weights
from fedlsg.privacy.trained_weights import Writer, follow
from fedlsg.privacy.weight_digest import digest_of

STEPS = torch.Generator().manual_seed(4)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 300), nn.LayerNorm(300), nn.Linear(300, 2)
    )


def moved(model, *names):
    """The model after a step that has moved some parameters, all by default."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not names or name in names:
                p += 0.1 * torch.randn(p.shape, generator=STEPS)
    return model


def trained(*names, **given):
    model, writer = net(), Writer(**given)
    writer.begin(dict(model.named_parameters()))
    moved(model, *names)
    writer.note(dict(model.named_parameters()))
    return model


def refused(model, **given):
    try:
        Writer(**given).check(model, "give ledger=PATH")
    except ValueError:
        return True
    return False


def test_the_refusal_names_both_ways():
    with pytest.raises(
        ValueError,
        match=r"^0.weight was trained by .*: give ledger=PATH; .*fresh_data=True; or build",
    ):
        Writer().check(trained(), "give ledger=PATH")


def test_a_new_model_of_the_same_seed_is_nobodys():
    trained()
    assert not refused(net())
    assert refused(copy.deepcopy(trained()))


@pytest.mark.parametrize("name", dict(net().named_parameters()))
def test_one_parameter_is_enough(name):
    """In a model of other weights, or frozen."""
    model, other = trained(), net(seed=1)
    with torch.no_grad():
        other.get_parameter(name).copy_(model.get_parameter(name))
    assert refused(other)
    other.requires_grad_(False)
    assert refused(other)


def test_frozen_as_buffers_they_are_seen():
    old, new = trained(), nn.Linear(2, 2)
    new.register_buffer("features", old[0].weight.detach().clone())
    new.register_buffer("positions", torch.arange(4.0))
    assert refused(new)
    new.register_buffer("features", net(1)[0].weight.detach())
    assert not refused(new)


def test_what_did_not_move_is_nobodys():
    """A frozen body, biases and scales as they begin: another model has them, too."""
    model = trained("4.weight")
    other = net()
    assert not refused(other)
    with torch.no_grad():
        other[4].weight.copy_(model[4].weight)
    assert refused(other)


def one_moved(place, dtype=torch.float32, by=0.1):
    """A new model of 30 layers, of which a step has moved one number."""
    torch.manual_seed(0)
    model, writer = nn.Sequential(*(nn.Linear(40, 40) for _ in range(30))).to(dtype), Writer()
    writer.begin(dict(model.named_parameters()), most=3)
    with torch.no_grad():
        model[place].weight.view(-1)[7 * place + 5] += by
    writer.note(dict(model.named_parameters()))
    return model


@pytest.mark.parametrize("place", [0, 17, 29])
def test_one_number_that_moved_is_seen(place):
    """As very sparse methods move them: no digest was noted, and the budget began again."""
    model = one_moved(place)
    assert refused(model)
    assert refused(copy.deepcopy(model))
    # a part of the model that was trained, and did not move; a copy of it is anybody's
    assert refused(model[1 if place else 2])
    assert not refused(copy.deepcopy(model[1 if place else 2]))


def test_a_step_that_moves_no_number_is_no_false_alarm():
    model = one_moved(3, by=0.0)
    assert not refused(model)
    assert not refused(copy.deepcopy(model))


def test_numbers_below_float32_are_seen_in_float64():
    model = one_moved(3, torch.float64, by=1e-12)
    assert refused(model)
    assert refused(copy.deepcopy(model))
    assert not refused(copy.deepcopy(model).float())  # these numbers have not moved


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constants_are_nobodys(value):
    """As pruning leaves them: a new bias is one, too."""
    model, writer = net(), Writer()
    writer.begin(dict(model.named_parameters()))
    with torch.no_grad():
        model[4].weight.fill_(value)
    writer.note(dict(model.named_parameters()))
    other = net(seed=1)
    with torch.no_grad():
        other[4].weight.fill_(value)
    assert not refused(other)
    assert refused(model)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.half(),
        lambda model: model.half().float(),
        lambda model: model.double(),
        lambda model: [p.detach().clamp_(-0.1, 0.1) for p in model.parameters()],
        lambda model: model.load_state_dict(net(seed=2).state_dict()),
        lambda model: model.to(memory_format=torch.channels_last),
        lambda model: nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector(model.parameters()).detach().sign(), model.parameters()
        ),
    ],
)
def test_the_trained_model_is_recognised_whatever_becomes_of_its_numbers(change):
    model = trained()
    change(model)
    assert refused(model)
    copied = copy.deepcopy(model)
    follow(model, copied)
    assert refused(copied)


def test_fresh_data_are_their_owners_word():
    assert refused(trained())
    assert not refused(trained(), fresh_data=True)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_copies_in_half_precision_are_recognised(half, monkeypatch):
    copied = copy.deepcopy(trained()).to(half).float()
    assert refused(copied)
    assert refused(copied.to(half))
    monkeypatch.setattr(trained_weights, "rounded_digests", lambda *_: {})
    assert not refused(copied)  # the control


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_honest_weights_in_half_precision_are_nobodys(half):
    """Those of the start, also where training has moved them by less than they are rounded."""
    for scale in (1e-9, 0.1):
        model, writer = net(), Writer()
        writer.begin(dict(model.named_parameters()))
        with torch.no_grad():
            for p in model.parameters():
                p += scale * torch.randn(p.shape, generator=STEPS)
        writer.note(dict(model.named_parameters()))
        assert not refused(net().to(half).float())
        assert not refused(net(seed=1).to(half).float())


def test_scales_near_one_are_nobodys():
    """In half precision those of two honest models can be equal."""
    model, writer = net(), Writer()
    writer.begin(dict(model.named_parameters()))
    with torch.no_grad():
        model[3].weight[7] += 0.01
    writer.note(dict(model.named_parameters()))
    other = net(seed=1)
    with torch.no_grad():
        other[3].weight[7] += 0.0101
    assert torch.equal(model[3].weight.bfloat16(), other[3].weight.bfloat16())
    assert not refused(other)


def test_a_writer_goes_on_from_its_own_and_sees_others_that_come_between():
    model, writer = net(), Writer()
    writer.begin(dict(model.named_parameters()))
    before = copy.deepcopy(moved(model).state_dict())
    writer.note(dict(model.named_parameters()))
    moved(model)
    writer.note(dict(model.named_parameters()))
    model.load_state_dict(before)
    writer.check(model, "")
    model.load_state_dict(trained().state_dict())
    with pytest.raises(ValueError, match="was trained by an earlier private step"):
        writer.check(model, "")


@pytest.mark.parametrize("through", ["data", "numpy"])
def test_numbers_that_come_without_a_new_version_are_seen(through):
    model, writer, other = net(), Writer(), trained()
    writer.begin(dict(model.named_parameters()))
    moved(model)
    writer.note(dict(model.named_parameters()))
    versions = [p._version for p in model.parameters()]
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        if through == "data":
            p.data.copy_(q)
        else:
            p.detach().numpy()[...] = q.detach().numpy()
    assert versions == [p._version for p in model.parameters()]
    with pytest.raises(ValueError, match="was trained by an earlier private step"):
        writer.check(model, "")


@pytest.mark.parametrize(
    "other", [torch.ones(3, dtype=torch.complex64), torch.ones(3, device="meta")]
)
def test_parameters_without_real_numbers_here_are_left_out(other):
    """Those on several devices are compared where the processor is: meta stands for another."""
    model, writer = net(), Writer()
    model.register_parameter("other", nn.Parameter(other))
    writer.begin(dict(model.named_parameters()))
    with torch.no_grad():
        model[0].weight.add_(1.0)
    writer.note(dict(model.named_parameters()))
    writer.check(model, "")
    model[0].weight.data.mul_(2.0)
    assert not writer._wrote(dict(model.named_parameters()))  # the control


def test_digests_are_of_numbers_wherever_they_lie():
    weight = torch.randn(64, 128)
    assert digest_of(weight) == digest_of(weight.T.contiguous().T) == digest_of(weight.double())
    assert digest_of(weight) != digest_of(weight + 1e-6)
    assert digest_of(torch.randn(4, dtype=torch.complex64)) == digest_of(torch.arange(3)) == b""
    assert digest_of(torch.randn(3, device="meta")) == b""


def test_the_oldest_digests_go_first(monkeypatch):
    monkeypatch.setattr(trained_weights, "MAX_DIGESTS", len(dict(net().named_parameters())))
    first = copy.deepcopy(trained())
    assert refused(first)
    second = copy.deepcopy(trained())
    assert not refused(first)
    assert refused(second)


@pytest.mark.parametrize("planted", ["no digests", "no identity"])
def test_the_tests_find_planted_mistakes(planted, monkeypatch):
    model = trained()
    copied = copy.deepcopy(model)
    model.double()
    moved(model)
    assert refused(copied)
    assert refused(model)
    monkeypatch.setattr(
        trained_weights,
        *{
            "no digests": ("_DIGESTS", {}),
            "no identity": ("_PARAMETERS", {}),
        }[planted],
    )
    assert [refused(copied), refused(model)] == [planted == "no identity", planted == "no digests"]
