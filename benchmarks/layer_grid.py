"""Per-example gradients of layers of torch in all their forms, against autograd one example at a
time.

    python -m benchmarks.layer_grid [--write docs/results/layers.md]

Types of layers x shapes x options, as in Opacus' tests of layers. A case is equal if every
parameter's gradients agree in float64, refused if it is refused with a reason, and wrong otherwise;
the command ends with 1 if one is wrong.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.gradients import trainable
from fedlsg.gradients.calls import UnsupportedLayerError
from fedlsg.gradients.isolation import per_example_gradients

BATCHES = (1, 4)
Forward = Callable[[nn.Module, Tensor], Tensor]
Case = tuple[str, Callable[[], nn.Module], tuple[int, ...], Forward]
"""A row of the table, the layer, the shape of one example (integers below 9 if it starts with 0),
how it is called.
"""


class Around(nn.Module):
    """A layer called by a function, so that the model takes examples first."""

    def __init__(self, layer: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.layer, self.route = layer, forward

    def forward(self, x: Tensor) -> Tensor:
        return self.route(self.layer, x)


def plainly(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)  # type: ignore[no-any-return]


def twice(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x) + layer(2 * x)  # type: ignore[no-any-return]


def bare_weight(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, layer.weight, layer.bias)  # type: ignore[arg-type]


def options(**values: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """All combinations."""
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def convolutions() -> Iterator[Case]:
    for n, transposed in product((1, 2, 3), (False, True)):
        kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{n}d")
        sides = {1: (9,), 2: (7, 6), 3: (5, 6, 5)}[n]
        paddings = (0, 1) if transposed else (0, 1, "same", "valid")
        modes = ("zeros",) if transposed else ("zeros", "circular", "reflect", "replicate")
        for given in options(
            groups=(1, 2, 4),
            stride=(1, 2),
            dilation=(1, 2),
            padding=paddings,
            padding_mode=modes,
            bias=(True, False),
            kernel_size=(2, 3),
        ):
            if (given["padding"] == "same" and given["stride"] > 1) or (
                given["padding_mode"] != "zeros" and n == 3
            ):
                continue
            if given["padding_mode"] != "zeros" and (
                given["dilation"] == 2 or given["padding"] == "valid"
            ):
                continue
            more = {"output_padding": 1} if transposed and given["stride"] == 2 else {}
            yield (
                kind.__name__,
                lambda kind=kind, kw={**given, **more}: kind(4, 8, **kw),
                (4, *sides),
                plainly,
            )


def recurrent() -> Iterator[Case]:
    for kind, given in product(
        (nn.RNN, nn.GRU, nn.LSTM),
        options(
            num_layers=(1, 2),
            bias=(True, False),
            batch_first=(True, False),
            bidirectional=(True, False),
            proj_size=(0, 2),
        ),
    ):
        if given["proj_size"] and kind is not nn.LSTM:
            continue
        given = {k: v for k, v in given.items() if k != "proj_size" or v}
        for packed in (False, True):

            def call(
                layer: nn.Module,
                x: Tensor,
                packed: bool = packed,
                first: bool = given["batch_first"],
            ) -> Tensor:
                lengths = (x[:, 0, 0].abs() * 10).long() % x.shape[1] + 1
                x = x if first else x.transpose(0, 1)
                if not packed:
                    out, last = layer(x)
                else:
                    out, last = layer(
                        pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
                    )
                    out, _ = pad_packed_sequence(out, batch_first=first, total_length=4)
                last = last if isinstance(last, Tensor) else torch.cat(last, 2)
                return torch.cat(
                    [
                        (out if first else out.transpose(0, 1)).flatten(1),
                        last.transpose(0, 1).flatten(1),
                    ],
                    1,
                )

            name = kind.__name__ + (", packed" if packed else "")
            yield name, lambda kind=kind, kw=given: kind(3, 4, **kw), (4, 3), call
    for kind, bias in product((nn.RNNCell, nn.GRUCell, nn.LSTMCell), (True, False)):

        def loop(cell: nn.Module, x: Tensor) -> Tensor:
            state = None
            for t in range(x.shape[1]):
                state = cell(x[:, t], state)
            return state[0] if isinstance(state, tuple) else state  # type: ignore[return-value]

        yield kind.__name__, lambda kind=kind, bias=bias: kind(3, 4, bias=bias), (4, 3), loop


def attention() -> Iterator[Case]:
    for given in options(
        bias=(True, False),
        batch_first=(True, False),
        add_bias_kv=(False, True),
        add_zero_attn=(False, True),
        own=(False, True),
        mask=("none", "causal", "padding", "heads"),
        weights=(True, False),
    ):
        own = {"kdim": 3, "vdim": 5} if given["own"] else {}
        kw = {k: given[k] for k in ("bias", "batch_first", "add_bias_kv", "add_zero_attn")} | own

        def call(layer: nn.Module, x: Tensor, g: dict[str, Any] = given) -> Tensor:
            k, v = (x[..., :3], torch.cat([x, x[..., :1]], 2)) if g["own"] else (x, 2 * x)
            masks: dict[str, Any] = {"need_weights": g["weights"]}
            length = x.shape[1]
            if g["mask"] == "causal":
                masks["attn_mask"] = torch.ones(length, length, dtype=torch.bool).triu(1)
            elif g["mask"] == "padding":
                masks["key_padding_mask"] = torch.arange(length) >= (
                    (x[:, 0, :1].abs() * 9).long() % length + 1
                )
            elif g["mask"] == "heads":
                masks["attn_mask"] = (
                    x[:, :1, :1].expand(-1, length, length).repeat_interleave(2, 0).tanh()
                )
            given = (x, k, v) if g["batch_first"] else tuple(t.transpose(0, 1) for t in (x, k, v))
            out, seen = layer(*given, **masks)
            out = (out if g["batch_first"] else out.transpose(0, 1)).flatten(1)
            return out if seen is None else torch.cat([out, seen.flatten(1)], 1)

        yield "MultiheadAttention", lambda kw=kw: nn.MultiheadAttention(4, 2, **kw), (3, 4), call
    for first, norm in product((True, False), (True, False)):
        swap = plainly if first else lambda layer, x: layer(x.transpose(0, 1)).transpose(0, 1)
        kw = {
            "nhead": 2,
            "dim_feedforward": 5,
            "dropout": 0.0,
            "batch_first": first,
            "norm_first": norm,
        }
        yield (
            "TransformerEncoderLayer",
            lambda kw=kw: nn.TransformerEncoderLayer(4, **kw),
            (3, 4),
            swap,
        )


def tables() -> Iterator[Case]:
    for shape, padding in product(((), (3,), (3, 2)), (None, 0)):
        yield "Embedding", lambda p=padding: nn.Embedding(9, 4, padding_idx=p), (0, *shape), plainly
    yield (
        "Embedding",
        lambda: nn.Embedding(9, 4),
        (0, 3),
        lambda layer, x: layer(x.t()).transpose(0, 1),
    )
    yield (
        "Embedding",
        lambda: nn.Embedding(9, 4),
        (0, 3),
        lambda layer, x: layer(x) + layer(torch.arange(3)),
    )
    for mode, padding, last, flat, weighted in product(
        ("sum", "mean", "max"), (None, 0), *[(False, True)] * 3
    ):
        if (weighted and mode != "sum") or (last and not flat):
            continue

        def call(
            layer: nn.Module, x: Tensor, f: bool = flat, last: bool = last, w: bool = weighted
        ) -> Tensor:
            more = {"per_sample_weights": x.double().sin() + 2} if w else {}
            if not f:
                return layer(x, **more)  # type: ignore[no-any-return]
            starts = torch.arange(len(x) + last) * x.shape[1]
            return layer(x.flatten(), starts, **{k: t.flatten() for k, t in more.items()})  # type: ignore[no-any-return]

        kw = {"mode": mode, "padding_idx": padding, "include_last_offset": last}
        yield "EmbeddingBag", lambda kw=kw: nn.EmbeddingBag(9, 4, **kw), (0, 3), call


def others() -> Iterator[Case]:
    for shape, bias in product(((4,), (3, 4), (2, 3, 4)), (True, False)):
        yield "Linear", lambda b=bias: nn.Linear(4, 5, bias=b), shape, plainly
        yield "a layer called twice", lambda b=bias: nn.Linear(4, 5, bias=b), shape, twice
        yield (
            "a weight read next to its layer",
            lambda b=bias: nn.Linear(4, 5, bias=b),
            shape,
            bare_weight,
        )
        yield "LayerNorm", lambda b=bias: nn.LayerNorm(4, bias=b), shape, plainly
        yield "LayerNorm", lambda s=shape, b=bias: nn.LayerNorm(s, bias=b), shape, plainly
        yield "RMSNorm", lambda: nn.RMSNorm(4), shape, plainly
        yield "RMSNorm", lambda s=shape: nn.RMSNorm(s), shape, plainly
        yield (
            "Bilinear",
            lambda b=bias: nn.Bilinear(4, 4, 3, bias=b),
            shape,
            lambda m, x: m(x, x.cos()),
        )
        for wrap in (parametrizations.weight_norm, parametrizations.orthogonal, spectral):
            name = {spectral: "spectral_norm, in eval()"}.get(wrap, wrap.__name__)
            yield name, lambda w=wrap, b=bias: w(nn.Linear(4, 5, bias=b)), shape, plainly
    for shape in ((4,), (4, 3), (4, 3, 2), (4, 5, 4, 3)):
        yield "PReLU", lambda: nn.PReLU(), shape, plainly
        yield "PReLU", lambda: nn.PReLU(4), shape, plainly
        if len(shape) > 1:
            kind = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[len(shape) - 2]
            yield kind.__name__, lambda k=kind: k(4, affine=True), shape, plainly
        for groups in (1, 2, 4):
            yield "GroupNorm", lambda g=groups: nn.GroupNorm(g, 4), (4, *shape[1:], 3), plainly
    for kind, shape in ((nn.Conv1d, (4, 9)), (nn.Conv2d, (4, 5, 5)), (nn.Conv3d, (4, 4, 4, 4))):
        for groups, wrap in product(
            (1, 4), (parametrizations.weight_norm, spectral, plainly_subclassed)
        ):
            name = {spectral: "spectral_norm, in eval()", plainly_subclassed: "a subclass"}.get(
                wrap, wrap.__name__
            )
            yield name, lambda k=kind, g=groups, w=wrap: w(k(4, 4, 2, groups=g)), shape, plainly
            yield (
                "a layer called twice",
                lambda k=kind, g=groups: k(4, 4, 2, groups=g),
                shape,
                twice,
            )
    yield (
        "spectral_norm, in train()",
        lambda: parametrizations.spectral_norm(nn.Linear(4, 5)),
        (4,),
        plainly,
    )
    yield "BatchNorm", lambda: nn.BatchNorm1d(4), (4, 3), plainly
    yield "dropout of attention", lambda: nn.TransformerEncoderLayer(4, 2, 5), (3, 4), plainly
    yield (
        "dropout of LSTM",
        lambda: nn.LSTM(4, 3, 2, dropout=0.5),
        (3, 4),
        lambda m, x: m(x.transpose(0, 1))[0][-1],
    )
    yield "weight_norm by hooks", lambda: nn.utils.weight_norm(nn.Linear(4, 5)), (4,), plainly


def spectral(layer: nn.Module) -> nn.Module:
    """Spectral norm whose vectors stay."""
    made = parametrizations.spectral_norm(layer)
    made.parametrizations.eval()  # type: ignore[union-attr, operator]
    return made


def plainly_subclassed(layer: nn.Module) -> nn.Module:
    """The layer as a subclass of its type."""
    layer.__class__ = type(f"My{type(layer).__name__}", (type(layer),), {})
    return layer


def judge(case: Case) -> tuple[str, str]:
    """equal, refused or wrong, with the reason."""
    _, build, shape, forward = case
    for batch in BATCHES:
        torch.manual_seed(0)
        model = Around(build().double(), forward)
        whole = shape[:1] == (0,)
        x = (
            torch.randint(9, (batch, *shape[1:]))
            if whole
            else torch.randn(batch, *shape, dtype=torch.float64)
        )
        parameters = trainable(model)
        where = tuple(
            Coordinates(name=name, shape=tuple(p.shape)) for name, p in parameters.items()
        )
        frame = Frame(coordinates=where, blocks=tuple(make_blocks(where)))
        try:
            got = per_example_gradients(model, loss, x, torch.zeros(batch), frame)
        except UnsupportedLayerError as error:
            return "refused", str(error)
        except Exception as error:
            return "wrong", f"{type(error).__name__}: {error}"
        rows = [
            torch.autograd.grad(
                loss(model(x[i : i + 1]), x).sum(), list(parameters.values()), allow_unused=True
            )
            for i in range(batch)
        ]
        for own, name, *wanted in zip(got, parameters, *rows, strict=True):
            whole_rows = torch.stack(
                [torch.zeros_like(parameters[name]) if w is None else w for w in wanted]
            ).flatten(1)
            if not torch.allclose(own, whole_rows, rtol=1e-8, atol=1e-9):
                return "wrong", f"{name} differs by {float((own - whole_rows).abs().max()):.1e}"
    return "equal", ""


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) + 0.3).square().sum(1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, help="Markdown file of the table")
    given = parser.parse_args()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, str] = {}
    for make in (convolutions, recurrent, attention, tables, others):
        for case in make():
            verdict, reason = judge(case)
            counts[case[0]][verdict] += 1
            if verdict == "wrong" or case[0] not in reasons:
                reasons[case[0]] = reason or reasons.get(case[0], "")
    total = sum(counts.values(), Counter())
    lines = [
        "# Layers against autograd",
        "",
        f"{total.total()} cases: {total['equal']} equal, {total['refused']} refused with the "
        f"reason, {total['wrong']} wrong. Made by `python -m benchmarks.layer_grid --write "
        "docs/results/layers.md`.",
        "",
        "| layer | equal | refused | wrong | reason |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {c['equal']} | {c['refused']} | {c['wrong']} | {reasons[name]} |"
            for name, c in counts.items()
        ),
    ]
    print("\n".join(lines))
    if given.write is not None:
        given.write.write_text("\n".join(lines) + "\n")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
