"""LSTM, GRU and RNN written in plain operations, which torch.func can differentiate; the fused ones it cannot.

Symbols: x (B, T, n) input of a layer, h (B, H) hidden state, c (B, H) cell state; gates in torch's order.
    RNN   h = tanh(W x + b + U h + b')   (or relu)
    GRU   r, z = sigmoid(.),  n = tanh(W x + b + r (U h + b')),  h = (1 - z) n + z h
    LSTM  i, f, o = sigmoid(.), g = tanh(.),  c = f c + i g,  h = o tanh(c)
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.gradients.calls.nested import tensors_in
from fedlsg.gradients.calls.torch_func import Axes, by_torch_func

State = tuple[Tensor, ...]


def refusal(module: nn.RNNBase) -> str | None:
    """Dropout would be drawn again; a projection of the hidden state is not written here."""
    if module.dropout > 0 and module.num_layers > 1 and module.training:
        return "its dropout cannot be repeated in backward; set dropout=0 on it, with nn.Dropout after it if wanted"
    if module.proj_size > 0:
        return "proj_size is not supported; set proj_size=0 and use nn.Linear after it"
    return None


def axes(module: nn.RNNBase, inputs: tuple[Any, ...]) -> Axes:
    """The axis of the examples in the input and in the states that are given."""
    states = tensors_in(inputs[1:])
    return (0 if module.batch_first else 1, *[1] * len(states))


def gradients(module: nn.RNNBase, inputs: tuple[Any, ...], output_gradient: Any) -> dict[str, Tensor]:
    """As ``by_torch_func``, of the same recurrence in plain operations."""
    where = axes(module, inputs)
    back = [where[0], *[1] * (len(tensors_in(output_gradient)) - 1)]
    return by_torch_func(module, inputs, output_gradient, forward=run, in_axes=where, out_axes=back)


def run(module: nn.RNNBase, x: Tensor, given: Any = None, *_: Any) -> Any:
    """What ``module(x, given)`` returns, for an input with a batch dimension and dropout 0."""
    x = x if module.batch_first else x.transpose(0, 1)
    directions = 2 if module.bidirectional else 1
    shape = (module.num_layers * directions, len(x), module.hidden_size)
    states = given if isinstance(given, tuple) else (given,)
    if given is None:
        states = (x.new_zeros(shape),) * (2 if module.mode == "LSTM" else 1)
    last: list[State] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            out, end = _direction(module, x, layer, direction, tuple(s[place] for s in states))
            outputs.append(out)
            last.append(end)
        x = torch.cat(outputs, 2)
    finals = tuple(torch.stack(list(parts)) for parts in zip(*last, strict=True))
    return (x if module.batch_first else x.transpose(0, 1)), (finals if module.mode == "LSTM" else finals[0])


def _direction(module: nn.RNNBase, x: Tensor, layer: int, direction: int, state: State) -> tuple[Tensor, State]:
    suffix = f"_l{layer}{'_reverse' if direction else ''}"
    W, U = getattr(module, "weight_ih" + suffix), getattr(module, "weight_hh" + suffix)
    b, b2 = (getattr(module, name + suffix) if module.bias else None for name in ("bias_ih", "bias_hh"))
    steps = reversed(range(x.shape[1])) if direction else range(x.shape[1])
    outputs: dict[int, Tensor] = {}
    inner = F.linear(x, W, b)
    for t in steps:
        state = _step(module.mode, inner[:, t], F.linear(state[0], U, b2), state)
        outputs[t] = state[0]
    return torch.stack([outputs[t] for t in range(x.shape[1])], 1), state


def _step(mode: str, a: Tensor, u: Tensor, state: State) -> State:
    if mode == "LSTM":
        i, f, g, o = (a + u).chunk(4, 1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if mode == "GRU":
        r, z, n = a.chunk(3, 1)
        r2, z2, n2 = u.chunk(3, 1)
        update = (z + z2).sigmoid()
        return ((1 - update) * (n + (r + r2).sigmoid() * n2).tanh() + update * state[0],)
    return ((a + u).tanh() if mode == "RNN_TANH" else (a + u).relu(),)
