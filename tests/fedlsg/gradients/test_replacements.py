"""make_supported: what has no per-example gradients is replaced, said, and the result works."""

import pytest
import torch
from torch import Tensor, nn

import fedlsg
from fedlsg.gradients.independence import check_independent
from fedlsg.gradients.supported import UnsupportedLayerError, check_supported
from tests.fedlsg.support.gradient_oracle import squared_error


class Net(nn.Module):
    """A convolutional network with everything that has to be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
            nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.Conv2d(8, 8, 1), nn.SyncBatchNorm(8),
        )  # fmt: skip
        self.volume, self.line = nn.BatchNorm3d(8, affine=False), nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.memory = nn.LSTM(8, 4, 2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body[:5](x)
        h = self.body[5](h) if isinstance(self.body[5], nn.GroupNorm) else h
        h = self.volume(h.unsqueeze(2)).squeeze(2)
        h = self.line(h.flatten(2)).transpose(1, 2)
        return self.memory(self.attention(h, h, h)[0])[0].flatten(1)


def test_a_model_is_made_supported_and_what_was_done_is_said():
    torch.manual_seed(0)
    given = Net()
    state = {name: t.clone() for name, t in given.state_dict().items()}
    with pytest.raises(UnsupportedLayerError):
        check_supported(given)
    model, changes = made = fedlsg.make_supported(given)
    assert [change.split(":")[0] for change in changes] == [
        "body.1 (BatchNorm2d)", "body.3 (InstanceNorm2d)", "body.5 (SyncBatchNorm)", "volume (BatchNorm3d)",
        "line (BatchNorm1d)", "attention (MultiheadAttention)", "memory (LSTM)",
    ]  # fmt: skip
    assert changes[0] == ("body.1 (BatchNorm2d): replaced by GroupNorm(2, 8), because it mixes the examples of a batch")
    assert str(made) == "\n".join(changes)
    x, y = torch.randn(7, 3, 6, 6), torch.randn(7)
    check_supported(model)
    check_independent(model, squared_error, x, y)
    assert isinstance(given.body[1], nn.BatchNorm2d)
    assert all(torch.equal(t, state[name]) for name, t in given.state_dict().items())


def test_what_is_still_refused_is_named():
    words = nn.Embedding(3, 4, max_norm=1.0, scale_grad_by_freq=True)
    made = fedlsg.make_supported(nn.Sequential(words, nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))))
    assert made.changes[0].startswith("0 (Embedding): max_norm and scale_grad_by_freq switched off")
    assert made.changes[1].startswith("still refused: 1 (ParametrizedLinear): the parametrization spectral_norm")
    assert len(made.changes) == 2
