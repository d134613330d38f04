"""Planted mixers are found and named; models that treat examples independently pass."""

import copy
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError, check_supported
from fedlsg.gradients.independence import check as independence
from fedlsg.gradients.independence import check_model
from fedlsg.gradients.isolation.levels import Isolation
from tests.fedlsg.support import mixers
from tests.fedlsg.support.gradient_oracle import cross_entropy
from tests.fedlsg.support.mixers import CLASSES, TOKENS, WIDTH, Apply, MeanMixer, tokens_model


def probes(count: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, TOKENS, WIDTH, generator=generator)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def check(model: nn.Module, loss_fn=cross_entropy, level: Isolation = "checked") -> None:
    check_model(model, loss_fn, [probes()], level=level)


def made(make) -> nn.Module:
    torch.manual_seed(2)
    return make()


MIXERS = {
    "first": (lambda: nn.Sequential(MeanMixer(), *tokens_model()), r"^0 \(MeanMixer\)"),
    "middle": (lambda: tokens_model(MeanMixer()), r"^2 \(MeanMixer\)"),
    "last": (lambda: nn.Sequential(*tokens_model(), MeanMixer()), r"^5 \(MeanMixer\)"),
    "softmax": (
        lambda: tokens_model(nn.Softmax(dim=0)),
        r"^2 \(Softmax\).*another output.*dimension 0",
    ),
    "residual": (
        lambda: tokens_model(mixers.residual(nn.Linear(WIDTH, WIDTH), MeanMixer(), nn.Tanh())),
        r"^2.branch.1 \(MeanMixer\)",
    ),
    "own attention": (
        lambda: tokens_model(mixers.own_attention(mixed=True)),
        r"^2.weights \(Softmax\)",
    ),
    "sequence-first attention": (
        lambda: tokens_model(mixers.attention(batch_first=False)),
        r"^2.attention \(MultiheadAttention\)",
    ),
    "sequence-first GRU": (
        lambda: tokens_model(mixers.recurrent(batch_first=False)),
        r"^2.gru \(GRU\)",
    ),
    "batch norm in a forward": (
        lambda: tokens_model(mixers.functional_batch_norm()),
        r"^2 \(Apply\).*input of its layer 2.second",
    ),
    "behind zero weights": (lambda: tokens_model(mixers.gated_branch()), r"^2.mixer \(Apply\)"),
    "frozen part": (
        lambda: nn.Sequential(
            nn.Linear(WIDTH, WIDTH).requires_grad_(False), MeanMixer(), *tokens_model()
        ),
        r"^1 \(MeanMixer\)",
    ),
    "strength 1e-3": (lambda: tokens_model(MeanMixer(1e-3)), r"^2 \(MeanMixer\)"),
    "strength 1e-6": (lambda: tokens_model(MeanMixer(1e-6)), r"^2 \(MeanMixer\)"),
    "only in training": (
        lambda: tokens_model(MeanMixer(when=lambda m, x: m.training)),
        r"^2 \(MeanMixer\)",
    ),
    "only above 4 examples": (
        lambda: tokens_model(MeanMixer(when=lambda m, x: len(x) > 4)),
        "batch of 7",
    ),
    "only as many examples as units": (
        lambda: tokens_model(MeanMixer(when=lambda m, x: len(x) == WIDTH)),
        "of 8",
    ),
    "only next to large values": (
        lambda: nn.Sequential(
            MeanMixer(when=lambda m, x: bool(x.abs().max() > 20)), *tokens_model()
        ),
        r"^0 \(MeanMixer\)",
    ),
    "next neighbour": (
        lambda: tokens_model(Apply(lambda x: x + 0.1 * x.roll(1, 0))),
        r"^2 \(Apply\)",
    ),
    "earlier examples": (lambda: tokens_model(Apply(lambda x: x.cumsum(0))), r"^2 \(Apply\)"),
    "order by size": (lambda: tokens_model(Apply(lambda x: x.sort(0).values)), r"^2 \(Apply\)"),
    "shuffled partners": (
        lambda: tokens_model(Apply(lambda x: 0.7 * x + 0.3 * x[torch.randperm(len(x))])),
        r"^2 \(Apply\)",
    ),
    "duplicates": (
        lambda: tokens_model(
            Apply(lambda x: x * (x.unsqueeze(1) == x).all(-1).all(-1).sum(1).view(-1, 1, 1))
        ),
        r"^2 \(Apply\)",
    ),
    "backward alone": (
        lambda: tokens_model(mixers.BackwardMixer()),
        r"^2 \(BackwardMixer\).*gradient",
    ),
    "backward in a branch": (
        lambda: tokens_model(
            mixers.residual(nn.Linear(WIDTH, WIDTH), mixers.BackwardMixer(), nn.Tanh())
        ),
        r"^2.branch.1 \(BackwardMixer\).*gradient",
    ),
    "buffer": (lambda: tokens_model(mixers.Memory()), r"^2 \(Memory\).*depends on earlier batches"),
    "buffer for later": (
        lambda: tokens_model(mixers.UnusedMemory()),
        r"^2 \(UnusedMemory\).*the buffer seen",
    ),
    "counter": (
        lambda: tokens_model(mixers.Counter()),
        r"^2 \(Counter\).*changes the buffer count",
    ),
    "frozen rows that are read": (
        lambda: tokens_model(mixers.FrozenTable()),
        r"^2 \(FrozenTable\).*changes the frozen parameter table",
    ),
    "attribute": (
        lambda: tokens_model(mixers.HiddenMemory()),
        r"^2 \(HiddenMemory\).*depends on earlier batches",
    ),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("level", ["checked", "isolated"])
@pytest.mark.parametrize("case", MIXERS)
def test_a_model_that_mixes_examples_is_refused_by_the_layer(case, level):
    make, message = MIXERS[case]
    model = made(make)
    check_supported(model)  # which knows layers by their type: it lets all of these pass
    with pytest.raises(UnsupportedLayerError, match=message):
        check(model, level=level)


HONEST = {
    "linear": tokens_model,
    "dropout": lambda: tokens_model(nn.Dropout(0.5)),
    "attention": lambda: tokens_model(mixers.attention(batch_first=True)),
    "turned attention": lambda: tokens_model(mixers.attention(batch_first=False, turned=True)),
    "own attention": lambda: tokens_model(mixers.own_attention(mixed=False)),
    "GRU": lambda: tokens_model(mixers.recurrent(batch_first=True)),
    "stochastic depth": lambda: tokens_model(mixers.stochastic_depth()),
    "frozen rows in a row": lambda: nn.Sequential(
        Apply(lambda x: x.flatten(0, 1)),
        nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        Apply(lambda x: x.unflatten(0, (-1, TOKENS))),
        *tokens_model(),
    ),
    "tokens first in frozen rows": lambda: nn.Sequential(
        Apply(lambda x: x.transpose(0, 1).flatten(0, 1)),
        nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        Apply(lambda x: x.unflatten(0, (TOKENS, -1)).transpose(0, 1)),
        *tokens_model(),
    ),
    "table of positions": lambda: tokens_model(mixers.Cached()),
    "experts": lambda: tokens_model(mixers.experts()),
    "dropout of channels": lambda: tokens_model(nn.Dropout1d(0.5), nn.AlphaDropout(0.3)),
    "draws of a function": lambda: tokens_model(
        Apply(lambda x: x * F.gumbel_softmax(torch.zeros_like(x), dim=-1))
    ),
    "in place": lambda: tokens_model(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.LayerNorm(WIDTH)
    ),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("level", ["checked", "isolated"])
@pytest.mark.parametrize("case", HONEST)
def test_a_model_that_treats_examples_independently_passes(case, level):
    check(made(HONEST[case]), level=level)


@pytest.mark.parametrize("model", [mixers.words_model, mixers.trimmed])
def test_an_honest_text_model_with_padding_passes(model):
    lengths = torch.tensor([3, 9, 1, 5, 2, 9, 4])
    mask = (torch.arange(9) < lengths.unsqueeze(1)).long()
    inputs = {"input_ids": torch.randint(1, 11, (7, 9)) * mask, "attention_mask": mask}
    check_model(made(model), cross_entropy, [(inputs, torch.randint(WIDTH, (7,)))])


@pytest.mark.parametrize("lengths", [[9, 3, 1, 5, 2, 9, 4], [3, 9, 1, 5, 2, 9, 4]])
def test_a_mixer_in_a_model_whose_shapes_depend_on_the_company_is_found(lengths):
    mask = (torch.arange(9) < torch.tensor(lengths).unsqueeze(1)).long()
    model = made(mixers.trimmed)
    model.words = nn.Sequential(model.words, MeanMixer(1e-6))
    with pytest.raises(UnsupportedLayerError, match=r"^words.1 \(MeanMixer\): mixes"):
        check_model(
            model,
            cross_entropy,
            [({"input_ids": mask, "attention_mask": mask}, torch.randint(WIDTH, (7,)))],
        )


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_an_honest_model_of_images_in_any_layout_passes(memory_format):
    model = made(mixers.channels_last).to(memory_format=memory_format)
    check_model(model, cross_entropy, [(torch.rand(7, 9, 9, 3), torch.randint(CLASSES, (7,)))])


def test_categories_among_the_inputs_are_left_and_a_model_need_not_take_large_values():
    x = torch.cat([torch.tensor([0.0, 1, 2, 3, 1, 2, 0]).unsqueeze(1), torch.rand(7, 2)], 1)
    targets = torch.randint(CLASSES, (7,))
    check_model(made(mixers.table), cross_entropy, [(x, targets)])
    with pytest.raises(UnsupportedLayerError, match=r"^1 \(MeanMixer\)"):
        check_model(
            nn.Sequential(made(mixers.table), MeanMixer(1e-6)), cross_entropy, [(x, targets)]
        )


@pytest.mark.slow
def test_a_loss_that_mixes_is_named():
    def centred(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = cross_entropy(outputs, targets)
        return losses / losses.sum()

    def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs @ outputs.mT, torch.arange(len(outputs)), reduction="none")

    class _Centred(torch.autograd.Function):
        @staticmethod
        def forward(ctx, losses):
            return losses.clone()

        @staticmethod
        def backward(ctx, g):
            return g * torch.arange(len(g), device=g.device).add(1).to(g)

    def backward_only(outputs: Tensor, targets: Tensor) -> Tensor:
        return _Centred.apply(cross_entropy(outputs, targets))

    for loss_fn in (centred, contrastive, backward_only):
        with pytest.raises(UnsupportedLayerError, match=r"^the loss function: mixes"):
            check(made(tokens_model), loss_fn)


@pytest.mark.slow
def test_a_loss_in_float32_leaves_the_check_of_the_model_in_float64():
    weights = torch.ones(CLASSES)

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, weights, reduction="none")

    check(made(tokens_model), loss_fn)
    with pytest.raises(UnsupportedLayerError, match=r"^2 \(MeanMixer\)"):
        check(made(lambda: tokens_model(MeanMixer(1e-6))), loss_fn)
    with pytest.raises(UnsupportedLayerError, match=r"^2 \(BackwardMixer\).*gradient"):
        check(made(lambda: tokens_model(mixers.BackwardMixer())), loss_fn)


def test_a_model_that_torch_cannot_copy_names_the_attribute():
    model = nn.Sequential(nn.Linear(WIDTH, CLASSES))
    model[0].last = model[0].weight * 2
    with pytest.raises(
        UnsupportedLayerError,
        match=r"^0 \(Linear\): its attribute last was computed from parameters",
    ):
        check(model)
    model, before = nn.Sequential(nn.Linear(WIDTH, CLASSES)), nn.Linear.forward
    model[0].forward = lambda x: before(model[0], x)
    with pytest.raises(
        UnsupportedLayerError, match=r"^0 \(Linear\): its forward was replaced .* types.MethodType"
    ):
        check(model)


class Number(nn.Module):
    """A module that gives one number for the whole batch: of a parameter, of none, or of the
    batch.
    """

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of, self.log = of, nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        if self.of == "batch":
            return x.square().mean()
        return self.log.exp() if self.of == "parameter" else torch.tensor(2.0, dtype=x.dtype)


class WithNumber(nn.Module):
    """A head whose outputs are scaled by the number; or which returns it, too."""

    def __init__(self, of: str, *, scaled: bool) -> None:
        super().__init__()
        self.net, self.number, self.scaled = nn.Sequential(*tokens_model()), Number(of), scaled

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y, number = self.net(x), self.number(x)
        return y * number if self.scaled else (y, number)


def first(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return cross_entropy(outputs[0], targets)


@pytest.mark.parametrize("of", ["parameter", "nothing"])
def test_a_number_without_dimensions_is_no_fault(of):
    check(made(lambda: WithNumber(of, scaled=True)))
    check(made(lambda: WithNumber(of, scaled=False)), first)
    check(made(lambda: WithNumber(of, scaled=False)), lambda o, t: cross_entropy(o[0] * o[1], t))


def test_a_number_of_the_whole_batch_is_refused_by_its_module_only_where_it_counts():
    """Such as the loss that a transformers model returns for its labels."""
    check(made(lambda: WithNumber("batch", scaled=False)), first)
    message = (
        r"^number \(Number\): mixes examples: .* another output of shape \(\), one number for all "
        r"examples"
    )
    with pytest.raises(UnsupportedLayerError, match=message):
        check(made(lambda: WithNumber("batch", scaled=True)))
    with pytest.raises(UnsupportedLayerError, match=message):
        check(
            made(lambda: WithNumber("batch", scaled=False)),
            lambda o, t: cross_entropy(o[0] * o[1], t),
        )


IN_FLOAT32 = {
    "whatever it is given": lambda x: F.linear(x.float(), torch.eye(WIDTH)).to(x.dtype),
    "and takes no float64": lambda x: x @ torch.eye(WIDTH),
}


@pytest.mark.parametrize("kind", IN_FLOAT32)
def test_a_model_that_computes_in_float32_is_compared_with_room_for_rounding(kind):
    check(made(lambda: tokens_model(Apply(IN_FLOAT32[kind]))))
    with pytest.raises(UnsupportedLayerError, match="MeanMixer"):
        check(made(lambda: tokens_model(Apply(IN_FLOAT32[kind]), MeanMixer(1e-3))))


def test_nothing_is_left_behind():
    model = made(lambda: tokens_model(nn.Dropout(0.5), mixers.stochastic_depth()))
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    check(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])


def test_the_mixers_are_accepted_without_the_comparison(monkeypatch):
    """Negative control: what finds them is the comparison of passes, nothing before it."""
    monkeypatch.setattr(independence.Check, "run", lambda check: None)
    for make, _ in MIXERS.values():
        check(made(make))


class Masked(nn.Module):
    """Gives a class no chance; ``mixed``: where the example before says so."""

    def __init__(self, mixed):
        super().__init__()
        self.last, self.mixed = nn.Linear(4, 3), mixed

    def forward(self, x):
        other = x.roll(1, 0) if self.mixed else x
        mask = torch.stack([torch.zeros(len(x)), torch.zeros(len(x)), other[:, 0]], 1) > 0
        return self.last(x).masked_fill(mask, -torch.inf)


def test_equal_infinities_are_no_difference_and_others_are_one():
    x, y = probes()[0][:, 0, :4], torch.zeros(7, dtype=torch.long)
    check_model(Masked(mixed=False), cross_entropy, [(x, y)])
    with pytest.raises(UnsupportedLayerError, match="mixes examples"):
        check_model(Masked(mixed=True), cross_entropy, [(x, y)])


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return self.last(x)


def test_a_count_is_told_to_leave_forward_and_no_seed_is_blamed():
    x, y = probes()[0][:, 0, :4], torch.zeros(7, dtype=torch.long)
    with pytest.raises(UnsupportedLayerError, match=r"buffer count.*write to no buffer") as error:
        check_model(Writes(), cross_entropy, [(x, y)])
    assert "remove the seed" not in str(error.value)


def test_mixing_blames_a_seed_only_where_draws_differ():
    for layer, drawn in (
        (MeanMixer(), False),
        (
            Apply(
                lambda x: x + float(np.random.rand()) * x.new_tensor(range(len(x)))[:, None, None]
            ),
            True,
        ),
    ):
        with pytest.raises(UnsupportedLayerError, match="mixes examples") as error:
            check(tokens_model(layer))
        assert ("remove the seed" in str(error.value)) == drawn


class Draws(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.last, self.draw = nn.Linear(4, 3), draw

    def forward(self, x):
        mu = self.last(x)
        return self.draw(mu, torch.ones_like(mu))


def test_a_draw_that_depends_on_a_tensor_names_the_draw_that_passes():
    x, y = probes()[0][:, 0, :4], torch.zeros(7, dtype=torch.long)
    with pytest.raises(
        UnsupportedLayerError, match=r"fails with a draw whose.*mu \+ std \* torch.randn_like\(mu\)"
    ):
        check_model(Draws(torch.normal), cross_entropy, [(x, y)])
    check_model(Draws(lambda mu, std: mu + std * torch.randn_like(mu)), cross_entropy, [(x, y)])


class Keeps(nn.Module):
    def __init__(self, returned):
        super().__init__()
        self.last, self.returned = nn.Linear(4, 3), returned

    def forward(self, x):
        z = self.last(x)
        if self.returned:
            return z, z.square().mean(1)
        self.kept = z.square().mean(1)
        return z


def test_a_tensor_that_forward_keeps_is_to_be_returned():
    x, y = probes()[0][:, 0, :4], torch.zeros(7, dtype=torch.long)
    model = Keeps(returned=False)
    model(x)
    with pytest.raises(UnsupportedLayerError, match="return kept from forward"):
        check_model(model, lambda o, t: cross_entropy(o, t) + model.kept, [(x, y)])
    check_model(Keeps(returned=True), lambda o, t: cross_entropy(o[0], t) + o[1], [(x, y)])


class Holds(nn.Linear):
    """A model that holds what nobody can copy, and numbers that are not equal to themselves."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.library, self.lock, self.chance = np, threading.Lock(), random.SystemRandom()
        self.numbers = (n for n in range(3))
        self.register_buffer("unknown", torch.full((1,), torch.nan).expand(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def test_a_model_may_hold_what_has_no_copy():
    x, y = torch.randn(7, 4), torch.randint(3, (7,))
    check_model(Holds(), cross_entropy, [(x, y)])
