"""LSTM, GRU and RNN written in plain operations, which torch.func can differentiate; the fused ones
it cannot.

Symbols: x (B, T, n) input of a layer, h (B, H) hidden state, c (B, H) cell state; gates in torch's
    order.
    RNN   h = tanh(W x + b + U h + b')   (or relu)
    GRU   r, z = sigmoid(.),  n = tanh(W x + b + r (U h + b')),  h = (1 - z) n + z h
    LSTM  i, f, o = sigmoid(.), g = tanh(.),  c = f c + i g,  h = o tanh(c), or its projection
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from fedlsg.gradients.calls.torch_func import Axes, by_torch_func, tensors_in

State = tuple[Tensor, ...]


def refusal(module: nn.RNNBase) -> str | None:
    """Dropout would be drawn again."""
    if module.dropout > 0 and module.num_layers > 1 and module.training:
        return (
            "its dropout cannot be repeated in backward; set dropout=0 on it, with nn.Dropout "
            "after it if wanted"
        )
    return None


def axes(module: nn.RNNBase, inputs: tuple[Any, ...]) -> Axes:
    """The axis of the examples in the input and in the states that are given; None for the parts of
    a packed input.
    """
    states = tensors_in(inputs[1:])
    first = (
        [None] * len(tensors_in(inputs[0]))
        if isinstance(inputs[0], PackedSequence)
        else [_axis(module)]
    )
    return (*first, *[1] * len(states))


def _axis(module: nn.RNNBase) -> int:
    return 0 if module.batch_first else 1


def size(module: nn.RNNBase, inputs: tuple[Any, ...]) -> int | None:
    """The examples of a packed input; None for another one."""
    return int(inputs[0].batch_sizes[0]) if isinstance(inputs[0], PackedSequence) else None


def gradients(
    module: nn.RNNBase, inputs: tuple[Any, ...], output_gradient: Any
) -> dict[str, Tensor]:
    """As ``by_torch_func``, of the same recurrence in plain operations."""
    back = [1] * (len(tensors_in(output_gradient[1])))
    if not isinstance(packed := inputs[0], PackedSequence):
        where = axes(module, inputs)
        back = [_axis(module), *back]
        return by_torch_func(
            module, inputs, output_gradient, forward=run, in_axes=where, out_axes=back
        )
    x, lengths = pad_packed_sequence(packed, batch_first=True)
    g, _ = pad_packed_sequence(PackedSequence(output_gradient[0][0], *packed[1:]), batch_first=True)
    inputs = (x, lengths.to(x.device), *inputs[1:])
    where = (0, 0, *[1] * len(tensors_in(inputs[2:])))
    return by_torch_func(
        module,
        inputs,
        (g, output_gradient[1]),
        forward=run_padded,
        in_axes=where,
        out_axes=[0, *back],
    )


def run(module: nn.RNNBase, x: Tensor, given: Any = None, *_: Any) -> Any:
    """What ``module(x, given)`` returns, for an input with a batch dimension and dropout 0."""
    out, last = run_padded(module, x if module.batch_first else x.transpose(0, 1), None, given)
    return (out if module.batch_first else out.transpose(0, 1)), last


def run_padded(
    module: nn.RNNBase, x: Tensor, lengths: Tensor | None, given: Any = None, *_: Any
) -> Any:
    """Outputs (B, T, H) and last states for x (B, T, n), of which example b has ``lengths[b]``
    steps; None means T.
    """
    directions = 2 if module.bidirectional else 1
    places = module.num_layers * directions
    states = given if isinstance(given, tuple) else (given,)
    if given is None:
        widths = (module.proj_size or module.hidden_size, module.hidden_size)
        states = tuple(
            x.new_zeros(places, len(x), n) for n in widths[: 2 if module.mode == "LSTM" else 1]
        )
    last: list[State] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            out, end = _direction(
                module, x, lengths, layer, direction, tuple(s[place] for s in states)
            )
            outputs.append(out)
            last.append(end)
        x = torch.cat(outputs, 2)
    finals = tuple(torch.stack(list(parts)) for parts in zip(*last, strict=True))
    return x, (finals if module.mode == "LSTM" else finals[0])


def _direction(
    module: nn.RNNBase, x: Tensor, lengths: Tensor | None, layer: int, direction: int, state: State
) -> tuple[Tensor, State]:
    suffix = f"_l{layer}{'_reverse' if direction else ''}"
    W, U = getattr(module, "weight_ih" + suffix), getattr(module, "weight_hh" + suffix)
    b, b2 = (
        getattr(module, name + suffix) if module.bias else None for name in ("bias_ih", "bias_hh")
    )
    steps = reversed(range(x.shape[1])) if direction else range(x.shape[1])
    outputs: dict[int, Tensor] = {}
    inner = F.linear(x, W, b)
    for t in steps:
        new = _step(module.mode, inner[:, t], F.linear(state[0], U, b2), state)
        if module.proj_size:
            new = (F.linear(new[0], getattr(module, "weight_hr" + suffix)), new[1])
        if lengths is not None:
            inside = (t < lengths).unsqueeze(1)
            new = tuple(
                torch.where(inside, now, before) for now, before in zip(new, state, strict=True)
            )
        state = new
        outputs[t] = state[0]
    return torch.stack([outputs[t] for t in range(x.shape[1])], 1), state


def cell(module: Any, inputs: tuple[Any, ...], output_gradient: Any) -> dict[str, Tensor]:
    """RNNCell, GRUCell and LSTMCell, in the same plain operations."""
    return by_torch_func(module, inputs, output_gradient, forward=_run_cell)


def _run_cell(module: Any, x: Tensor, given: Any = None) -> Any:
    mode = {nn.LSTMCell: "LSTM", nn.GRUCell: "GRU"}.get(
        type(module), f"RNN_{getattr(module, 'nonlinearity', '').upper()}"
    )
    zeros = x.new_zeros(len(x), module.hidden_size)
    state = (zeros, zeros) if given is None else given if isinstance(given, tuple) else (given,)
    inner = F.linear(x, module.weight_ih, module.bias_ih)
    outer = F.linear(state[0], module.weight_hh, module.bias_hh)
    new = _step(mode, inner, outer, state)
    return new if mode == "LSTM" else new[0]


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
