"""LSTM, GRU and RNN in plain operations: torch.func cannot differentiate the fused ones of torch.

Symbols: x (B, T, n) input of a layer, h (B, H) hidden state, c (B, H) cell state;
a = W x + b (``weight_ih``, ``bias_ih``) and u = U h + b' (``weight_hh``, ``bias_hh``). Each gate
has its own rows of a and u, in torch's order.
    RNN   h = tanh(a + u)   (or relu)
    GRU   r, z = sigmoid(a + u),  n = tanh(a + r u),  h = (1 - z) n + z h
    LSTM  i, f, o = sigmoid(a + u), g = tanh(a + u),  c = f c + i g,  h = o tanh(c)
A projection follows h if the layer has one (``proj_size``).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from fedlsg.gradients.calls.torch_func import Axes, by_torch_func, tensors_in

State = tuple[Tensor, ...]
"""(h, c) of an LSTM, (h,) of a GRU or RNN."""


def refusal(module: nn.RNNBase) -> str | None:
    """Why a layer with dropout between its parts is refused, with the fix; None without dropout."""
    if module.dropout > 0 and module.num_layers > 1 and module.training:
        return (
            "its dropout cannot be repeated in backward; set dropout=0 on it, with nn.Dropout "
            "after it if wanted"
        )
    return None


def axes(module: nn.RNNBase, inputs: tuple[Any, ...]) -> Axes:
    """The axis of the examples in input and states; None for the parts of a packed input."""
    of_input: Axes = (_axis(module),)
    if isinstance(inputs[0], PackedSequence):
        of_input = [None] * len(tensors_in(inputs[0]))
    return (*of_input, *[1] * len(tensors_in(inputs[1:])))


def _axis(module: nn.RNNBase) -> int:
    return 0 if module.batch_first else 1


def size(module: nn.RNNBase, inputs: tuple[Any, ...]) -> int | None:
    """The number of examples of a packed input; None for another input, whose axes show it."""
    return int(inputs[0].batch_sizes[0]) if isinstance(inputs[0], PackedSequence) else None


def gradients(
    module: nn.RNNBase, inputs: tuple[Any, ...], output_gradient: Any
) -> dict[str, Tensor]:
    """As ``by_torch_func``, of the same recurrence in plain operations."""
    of_states = [1] * (len(tensors_in(output_gradient[1])))
    if not isinstance(packed := inputs[0], PackedSequence):
        return by_torch_func(
            module,
            inputs,
            output_gradient,
            forward=run,
            in_axes=axes(module, inputs),
            out_axes=[_axis(module), *of_states],
        )
    x, lengths = pad_packed_sequence(packed, batch_first=True)
    g, _ = pad_packed_sequence(PackedSequence(output_gradient[0][0], *packed[1:]), batch_first=True)
    inputs = (x, lengths.to(x.device), *inputs[1:])
    return by_torch_func(
        module,
        inputs,
        (g, output_gradient[1]),
        forward=run_padded,
        in_axes=(0, 0, *[1] * len(tensors_in(inputs[2:]))),
        out_axes=[0, *of_states],
    )


def run(module: nn.RNNBase, x: Tensor, start: Any = None, *_: Any) -> Any:
    """The result of ``module(x, start)``, for an input with a batch dimension and dropout 0."""
    out, last = run_padded(module, x if module.batch_first else x.transpose(0, 1), None, start)
    return (out if module.batch_first else out.transpose(0, 1)), last


def run_padded(
    module: nn.RNNBase, x: Tensor, lengths: Tensor | None, start: Any = None, *_: Any
) -> Any:
    """Outputs (B, T, H) and last states of the layer for x (B, T, n).

    lengths: steps of each example; None if all have T.
    start: first states (layers * directions, B, H), as torch takes them; None for zeros.
    """
    directions = 2 if module.bidirectional else 1
    count = module.num_layers * directions
    states = start if isinstance(start, tuple) else (start,)
    if start is None:
        widths = [module.proj_size or module.hidden_size]
        if module.mode == "LSTM":
            widths.append(module.hidden_size)
        states = tuple(x.new_zeros(count, len(x), width) for width in widths)
    last: list[State] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            first = tuple(s[layer * directions + direction] for s in states)
            out, end = _direction(module, x, lengths, layer, direction, first)
            outputs.append(out)
            last.append(end)
        x = torch.cat(outputs, 2)
    stacked = tuple(torch.stack(list(parts)) for parts in zip(*last, strict=True))
    return x, (stacked if module.mode == "LSTM" else stacked[0])


def _direction(
    module: nn.RNNBase, x: Tensor, lengths: Tensor | None, layer: int, direction: int, state: State
) -> tuple[Tensor, State]:
    """Outputs (B, T, H) and last state of one layer in one direction (0 forward, 1 backward).

    After the end of an example its state stays as it is.
    """
    suffix = f"_l{layer}{'_reverse' if direction else ''}"
    W, U = getattr(module, "weight_ih" + suffix), getattr(module, "weight_hh" + suffix)
    b, b2 = (
        getattr(module, name + suffix) if module.bias else None for name in ("bias_ih", "bias_hh")
    )
    steps = reversed(range(x.shape[1])) if direction else range(x.shape[1])
    outputs: dict[int, Tensor] = {}
    a = F.linear(x, W, b)
    for t in steps:
        new = _step(module.mode, a[:, t], F.linear(state[0], U, b2), state)
        if module.proj_size:
            new = (F.linear(new[0], getattr(module, "weight_hr" + suffix)), new[1])
        if lengths is not None:
            inside = (t < lengths).unsqueeze(1)
            pairs = zip(new, state, strict=True)
            new = tuple(torch.where(inside, after, before) for after, before in pairs)
        state = new
        outputs[t] = state[0]
    return torch.stack([outputs[t] for t in range(x.shape[1])], 1), state


def cell(module: Any, inputs: tuple[Any, ...], output_gradient: Any) -> dict[str, Tensor]:
    """RNNCell, GRUCell and LSTMCell, in the same plain operations."""
    return by_torch_func(module, inputs, output_gradient, forward=_run_cell)


def _run_cell(module: Any, x: Tensor, start: Any = None) -> Any:
    """The result of ``module(x, start)``: one step."""
    mode = {nn.LSTMCell: "LSTM", nn.GRUCell: "GRU"}.get(
        type(module), f"RNN_{getattr(module, 'nonlinearity', '').upper()}"
    )
    if start is None:
        zeros = x.new_zeros(len(x), module.hidden_size)
        start = (zeros, zeros)
    state = start if isinstance(start, tuple) else (start,)
    a = F.linear(x, module.weight_ih, module.bias_ih)
    u = F.linear(state[0], module.weight_hh, module.bias_hh)
    new = _step(mode, a, u, state)
    return new if mode == "LSTM" else new[0]


def _step(mode: str, a: Tensor, u: Tensor, state: State) -> State:
    """The next state, from a and u; see the module docstring."""
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
