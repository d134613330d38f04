"""Everything that is refused is refused by name and with its fix; what looks alike but is sound is
accepted.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrize import remove_parametrizations

import fedlsg
from fedlsg.frame import Frame
from fedlsg.gradients.calls import register_layer
from fedlsg.gradients.hooked_pass.supported import (
    UnsupportedLayerError,
    check_frame,
    check_supported,
)
from fedlsg.gradients.independence import check_model
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error


class Bare(nn.Module):
    """A custom module with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


def tied_parameter(first: nn.Module, second: nn.Module) -> nn.Module:
    model = nn.ModuleDict({"first": first, "second": second})
    model["second"].weight = model["first"].weight
    return model


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), norm)


def with_parameter(layer: nn.Module) -> nn.Module:
    layer.more = nn.Parameter(torch.ones(3))
    return layer


def with_norm(layer: nn.Module) -> nn.Module:
    layer.norm = nn.BatchNorm2d(3)
    return layer


REFUSED = {
    "batch norm": (
        lambda: normed(nn.BatchNorm2d(4)),
        r"^1 \(BatchNorm2d\): .*replace BatchNorm by GroupNorm",
    ),
    "batch norm without affine": (lambda: normed(nn.BatchNorm2d(4, affine=False)), "GroupNorm"),
    "batch norm without statistics": (
        lambda: normed(nn.BatchNorm2d(4, affine=False, track_running_stats=False)).eval(),
        "GroupNorm",
    ),
    "trained batch norm in eval mode": (
        lambda: normed(nn.BatchNorm2d(4)).eval(),
        "weight, bias.*GroupNorm",
    ),
    "synchronised batch norm": (
        lambda: normed(nn.SyncBatchNorm(4)),
        r"\(SyncBatchNorm\).*GroupNorm",
    ),
    "instance norm with statistics": (
        lambda: normed(nn.InstanceNorm2d(4, track_running_stats=True)),
        "track_running_stats=False",
    ),
    "transformer layer": (
        lambda: nn.TransformerEncoderLayer(4, 2),
        r"self_attn \(MultiheadAttention\): its dropout",
    ),
    "a subclass of a recurrent layer": (
        lambda: type(
            "Mine", (nn.LSTM,), {"forward": lambda self, x: super(nn.LSTM, self).forward(x)}
        )(3, 3),
        "a forward of its own; use nn.LSTM itself.*register_layer",
    ),
    "batch norm in a subclass of a convolution": (
        lambda: with_norm(type("Mine", (nn.Conv2d,), {})(3, 3, 1)),
        r"^norm \(BatchNorm2d\): mixes the examples",
    ),
    "spectral norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 3, 1)),
        r"spectral_norm of weight .*parametrizations.eval\(\), use "
        r".*remove_parametrizations\(layer",
    ),
    "weight norm as a hook": (
        lambda: nn.utils.weight_norm(nn.Linear(3, 3)),
        "weight is computed by a hook of weight_norm; use .*parametrizations.weight_norm",
    ),
    "spectral norm as a hook": (
        lambda: nn.utils.spectral_norm(nn.Linear(3, 3)),
        "weight is computed by a hook of spectral_norm; use .*remove_s",
    ),
    "pruned": (
        lambda: prune.random_unstructured(nn.Conv1d(3, 3, 1), "weight", amount=0.5),
        r"weight is computed by prune; use torch.nn.utils.prune.remove\(layer, 'weight'\)",
    ),
    "a layer with a parameter of the user's": (
        lambda: with_parameter(nn.Linear(3, 3)),
        "no per-example gradients for weight, bias, more; remove what computes",
    ),
    "a script": (
        lambda: torch.jit.script(nn.Linear(3, 3)),
        "compiled by torch.jit.*give the module that was scripted",
    ),
    "a lazy layer": (
        lambda: nn.Sequential(nn.LazyLinear(3)),
        r"^0 \(LazyLinear\): .*run model\(x\) once",
    ),
    "a lazy norm": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d()),
        r"^1 \(LazyBatchNorm1d\)",
    ),
    "complex": (lambda: nn.Linear(3, 3, dtype=torch.complex64), "complex"),
    "shared module": (
        lambda: nn.ModuleDict({"first": (norm := nn.LayerNorm(3)), "second": norm}),
        "first.weight and second.weight are one shared parameter.*its own",
    ),
    "tied parameter": (
        lambda: tied_parameter(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)),
        "first.weight and second.weight are one shared parameter",
    ),
    "a frozen embedding that writes the rows it reads": (
        lambda: nn.Sequential(
            nn.Embedding(4, 3, max_norm=1.0).requires_grad_(False), nn.Linear(3, 3)
        ),
        r"^0 \(Embedding\): max_norm changes the rows",
    ),
    "nothing trainable": (lambda: nn.Linear(3, 3).requires_grad_(False), "nothing to train"),
    "no parameters": (lambda: nn.Tanh(), "nothing to train"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name_with_the_fix(case):
    make, message = REFUSED[case]
    with pytest.raises(UnsupportedLayerError, match=message):
        check_supported(make())


def registered(module: nn.Module) -> nn.Module:
    register_layer(type(module))
    return module


def own(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass: a type is registered once in a process."""
    return type(f"My{kind.__name__}", (kind,), {})


class Given(nn.Module):
    """A layer that gets what a function makes of the inputs."""

    def __init__(
        self, layer: nn.Module, make: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    ) -> None:
        super().__init__()
        self.layer, self.make = layer, make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(*self.make(x)).flatten(1)


FIXED = {
    "weight norm": lambda: remove_parametrizations(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), "weight"
    ),
    "weight norm, registered": lambda: registered(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    ),
    "orthogonal, registered": lambda: registered(
        nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))
    ),
    "spectral norm": lambda: remove_parametrizations(
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), "weight"
    ),
    "weight norm as a hook": lambda: nn.utils.remove_weight_norm(
        nn.utils.weight_norm(nn.Linear(3, 3))
    ),
    "spectral norm as a hook": lambda: nn.utils.remove_spectral_norm(
        nn.utils.spectral_norm(nn.Linear(3, 3))
    ),
    "a grouped convolution, registered": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 1)), registered(own(nn.Conv1d)(3, 3, 1, groups=3)), nn.Flatten()
    ),
    "circular padding, registered": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 1, 1)),
        registered(own(nn.Conv2d)(3, 3, 3, padding=1, padding_mode="circular")),
        nn.Flatten(),
    ),
    "prelu, registered": lambda: nn.Sequential(nn.Linear(3, 3), registered(own(nn.PReLU)())),
    "bilinear, registered": lambda: Given(
        registered(own(nn.Bilinear)(3, 3, 2)), lambda x: (x, x * 2)
    ),
    "transposed, registered": lambda: Given(
        registered(own(nn.ConvTranspose1d)(1, 2, 2)), lambda x: (x.unsqueeze(1),)
    ),
    "transposed in space, registered": lambda: Given(
        registered(own(nn.ConvTranspose3d)(1, 2, 2)), lambda x: (x[:, None, :, None, None],)
    ),
    "a bag of words, registered": lambda: Given(
        registered(own(nn.EmbeddingBag)(2, 3)), lambda x: ((x > 0).long(),)
    ),
    "pruned": lambda: prune.remove(
        prune.random_unstructured(nn.Linear(3, 3), "weight", amount=0.5), "weight"
    ),
    "a lazy layer that has run": lambda: (
        lazy := nn.Sequential(nn.LazyLinear(3)),
        lazy(torch.zeros(1, 3)),
    )[0],
}


@pytest.mark.thinned(9)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:There is a performance drop")
@pytest.mark.parametrize("case", FIXED)
def test_the_fix_that_a_refusal_names_trains(case):
    """Oracle: autograd, one example at a time. The independence check passes, too."""
    torch.manual_seed(0)
    model = FIXED[case]().double()
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE
    check_model(model, squared_error, [(x, y)])


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


ACCEPTED = {
    "frozen batch norm in eval mode": lambda: normed(frozen(nn.BatchNorm2d(4)).eval()),
    "instance norm": lambda: normed(nn.InstanceNorm2d(4)),
    "trained instance norm": lambda: normed(nn.InstanceNorm2d(4, affine=True)),
    "frozen embedding": lambda: nn.Sequential(frozen(nn.Embedding(4, 3)), nn.Linear(3, 3)),
    "frozen attention": lambda: nn.ModuleList(
        [frozen(nn.MultiheadAttention(4, 2)), nn.Linear(3, 3)]
    ),
    "frozen grouped convolution": lambda: nn.Sequential(
        frozen(nn.Conv2d(4, 4, 1, groups=2)), nn.GroupNorm(1, 4)
    ),
    "frozen tied weights": lambda: nn.ModuleList(
        [frozen(tied_parameter(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))), nn.Linear(3, 3)]
    ),
    "tied weights of linear layers and embeddings": lambda: tied_parameter(
        nn.Embedding(4, 3), nn.Linear(3, 4)
    ),
    "a parameter of a user's module": lambda: nn.ModuleDict({"head": Bare()}),
    "activation used twice": lambda: nn.Sequential(
        nn.Linear(3, 3), relu := nn.ReLU(), nn.Linear(3, 3), relu
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.LayerNorm(3)),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case):
    check_supported(ACCEPTED[case]())


def make_model() -> tuple[nn.Module, Frame]:
    model = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4))
    return model, make_frame(model, rank=1, sparsity=0.0)


def test_a_frame_of_another_shape_is_refused():
    _, frame = make_model()
    other = nn.Sequential(nn.Linear(3, 6), nn.GroupNorm(2, 6))
    with pytest.raises(
        UnsupportedLayerError, match=r"expected 0.weight of shape \(6, 3\), the frame has \(4, 3\)"
    ):
        check_frame(other, frame)


class Net(nn.Module):
    """A convolutional network with everything that has to be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
            nn.Conv2d(8, 8, 1),
            nn.SyncBatchNorm(8),
        )
        self.volume, self.line = nn.BatchNorm3d(8, affine=False), nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.memory = nn.LSTM(8, 4, 2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body[:5](x)
        h = self.body[5](h) if isinstance(self.body[5], nn.GroupNorm) else h
        h = self.volume(h.unsqueeze(2)).squeeze(2)
        h = self.line(h.flatten(2)).transpose(1, 2)
        return self.memory(self.attention(h, h, h)[0])[0].flatten(1)


@pytest.mark.slow
def test_a_model_is_made_supported_and_what_was_done_is_said():
    torch.manual_seed(0)
    given = Net()
    state = {name: t.clone() for name, t in given.state_dict().items()}
    with pytest.raises(UnsupportedLayerError):
        check_supported(given)
    model, changes = made = fedlsg.make_supported(given)
    assert [change.split(":")[0] for change in changes] == [
        "body.1 (BatchNorm2d)",
        "body.3 (InstanceNorm2d)",
        "body.5 (SyncBatchNorm)",
        "volume (BatchNorm3d)",
        "line (BatchNorm1d)",
        "attention (MultiheadAttention)",
        "memory (LSTM)",
    ]
    assert changes[0] == (
        "body.1 (BatchNorm2d): replaced by GroupNorm(2, 8), because it mixes the examples of a "
        "batch"
    )
    assert str(made) == "\n".join(changes)
    x, y = torch.randn(7, 3, 6, 6), torch.randn(7)
    check_supported(model)
    check_model(model, squared_error, [(x, y)])
    assert isinstance(given.body[1], nn.BatchNorm2d)
    assert all(torch.equal(t, state[name]) for name, t in given.state_dict().items())


def test_what_is_still_refused_is_named():
    words = nn.Embedding(3, 4, max_norm=1.0, scale_grad_by_freq=True)
    made = fedlsg.make_supported(
        nn.Sequential(words, nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)))
    )
    assert made.changes[0].startswith("0 (Embedding): max_norm and scale_grad_by_freq switched off")
    assert made.changes[1].startswith(
        "still refused: 1 (ParametrizedLinear): the parametrization spectral_norm"
    )
    assert len(made.changes) == 2
