"""Second moments of normalised gradients: by hand, against autograd's gradient of one example after
another, bounds.
"""

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.carriers.probe import moments
from fedlsg.carriers.probe.moments import Moments, second_moments
from fedlsg.gradients import StandardizedConv2d

EXAMPLES = 7


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each example."""
    return F.cross_entropy(outputs, targets, reduction="none")


class Mean(nn.Module):
    """The mean over positions, of tokens or of pixels."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axes)


class Texts(nn.Module):
    """Tokens given by keyword; those that the mask leaves out reach nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.mix, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.unused = nn.Linear(4, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = self.mix(self.words(ids)).tanh() * mask.unsqueeze(2)
        return self.head(h.sum(1) / mask.sum(1, keepdim=True))


def texts() -> dict[str, Tensor]:
    """A batch for ``Texts`` of 1 to 5 tokens each."""
    lengths = torch.arange(EXAMPLES) % 5 + 1
    return {
        "ids": torch.randint(11, (EXAMPLES, 5)),
        "mask": (torch.arange(5) < lengths.unsqueeze(1)).float(),
    }


def convolutions(conv: type[nn.Conv2d]) -> nn.Module:
    """Stride, unequal padding and dilation, and a kernel larger than its image needs."""
    return nn.Sequential(
        conv(3, 4, 3, padding=(1, 0), stride=2),
        nn.GroupNorm(1, 4),
        nn.Tanh(),
        conv(4, 6, 2, dilation=2, padding=1),
        nn.GroupNorm(2, 6),
        nn.Tanh(),
        conv(6, 5, (3, 1), padding="same"),
        Mean(2, 3),
        nn.Linear(5, 3),
    )


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor | dict[str, Tensor]]]] = {
    "vectors": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)),
        lambda: torch.randn(EXAMPLES, 8),
    ),
    "sequences": (
        lambda: nn.Sequential(
            nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5), Mean(1), nn.Linear(5, 3)
        ),
        lambda: torch.randn(EXAMPLES, 4, 8),
    ),
    "convolutions": (lambda: convolutions(nn.Conv2d), lambda: torch.randn(EXAMPLES, 3, 9, 8)),
    "standardized": (
        lambda: convolutions(StandardizedConv2d),
        lambda: torch.randn(EXAMPLES, 3, 9, 8),
    ),
    "dict": (Texts, texts),
}


def subject(name: str) -> tuple[nn.Module, Tensor | dict[str, Tensor], Tensor, tuple[str, ...]]:
    """Model, inputs, targets, and all matrices and kernels of Linear and Conv2d."""
    torch.manual_seed(3)
    build, draw = SUBJECTS[name]
    model = build().eval()
    carried = tuple(
        f"{path}.weight"
        for path, m in model.named_modules()
        if isinstance(m, nn.Linear | nn.Conv2d)
    )
    return model, draw(), torch.randint(3, (EXAMPLES,)), carried


def oracle(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Tensor],
    targets: Tensor,
    carried: tuple[str, ...],
) -> dict[str, Moments]:
    """The definition, in float64: dense gradients by autograd, one example after another."""
    model = model.double()
    found = {
        name: [torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
        for name in carried
    }
    parameters = dict(model.named_parameters())
    for i in range(len(targets)):
        if isinstance(inputs, Tensor):
            outputs = model(inputs[i : i + 1].double())
        else:
            one = {name: t[i : i + 1] for name, t in inputs.items()}
            outputs = model(
                **{name: t.double() if t.is_floating_point() else t for name, t in one.items()}
            )
        loss = losses(outputs, targets[i : i + 1]).sum()
        each = torch.autograd.grad(
            loss, list(parameters.values()), allow_unused=True, materialize_grads=True
        )
        norm = torch.cat([g.flatten() for g in each]).norm()
        for name, gradient in zip(parameters, each, strict=True):
            if name in found:
                g = gradient.flatten(1) / norm
                found[name] = [found[name][0] + g.mT @ g, found[name][1] + g @ g.mT]
    model.float()
    return {name: Moments(A, B) for name, (A, B) in found.items()}


def distance(found: Mapping[str, Moments], expected: Mapping[str, Moments]) -> float:
    """The largest difference in an entry of any A or B."""
    assert found.keys() == expected.keys()
    pairs = [pair for name in found for pair in zip(found[name], expected[name], strict=True)]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.thinned(29)
@pytest.mark.parametrize("most", [1, 2, 128])
@pytest.mark.parametrize("way", ["cheaper", "dense", "gram"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_moments_are_those_of_autograd(
    name: str, way: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs, targets, carried = subject(name)
    if way != "cheaper":
        monkeypatch.setattr(moments, "gram_is_cheaper", lambda *sizes: way == "gram")
    monkeypatch.setattr(moments, "MAX_SIZE", most)
    monkeypatch.setattr(moments, "BLOCKED_FROM", 6)  # some matrices in blocks
    found = second_moments(model, losses, inputs, targets, carried)
    assert distance(found, oracle(model, inputs, targets, carried)) < 2e-6
    for A, B in found.values():
        assert A.dtype == B.dtype == torch.float32
        torch.testing.assert_close(A.trace(), B.trace(), rtol=1e-5, atol=0)
