"""Data sets and the example to remove from them, chosen as an adversary would, and the mistakes
that they reveal.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.privacy.neighbours import Subject, of_tensors
from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.gradients import GhostGradients, Precision
from fedlsg.privacy import Mechanism, clip_factors, clipped_sum, norms_of
from fedlsg.simulations.models import digits_conv, digits_mlp, vision
from fedlsg.simulations.models.encoder import build_encoder
from fedlsg.simulations.models.encoder_source import find_encoder
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.simulations.workloads.text_workload import Tokens

Case = tuple[list[int], int]
"""Rows of the training split in the order in which a client holds them, and the place of the one
that leaves.
"""

LENGTHS = (6, 7, 9, 11, 15, 23, 30, 40, 63, 64)
MAX_LENGTH = 64
IMAGES = 12
HUGE, BROKEN, DARK = IMAGES, IMAGES + 1, IMAGES + 2


def made_texts(
    encoder: str = "minilm",
    *,
    name: str | None = None,
    ends: tuple[int, int] = (101, 102),
    words: tuple[int, int] = (1999, 29000),
) -> LoadedWorkload:
    """Random tokens between ``ends``: one text for each of LENGTHS, the longest with the largest
    allowed length.

    Args: encoder: the only model, a short name or an absolute folder; it goes by ``name``, or else
        by ``encoder``. words: the first id of a word and the one after the last, as in the
        vocabulary of ``encoder``.
    """
    draw = np.random.default_rng(3)
    ids = [np.array([ends[0], *draw.integers(*words, length - 2), ends[1]]) for length in LENGTHS]
    tokens = Tokens(
        ids=np.concatenate(ids).astype(np.int32),
        types=np.zeros(sum(LENGTHS), dtype=np.uint8),
        offsets=np.cumsum([0, *LENGTHS]),
        pad_id=0,
        max_length=MAX_LENGTH,
    )
    labels = torch.arange(len(LENGTHS)) % 2
    train = Split(
        inputs=tokens, labels=labels, prepare=dict, lengths=tokens.lengths, groups=tokens.groups
    )
    return LoadedWorkload(
        name="glue-sst2",
        train=train,
        test=train,
        num_classes=2,
        defaults={"microbatch_size": 32},
        models={name or encoder: lambda: build_encoder(find_encoder(encoder, None), num_classes=2)},
    )


def made_images(channels: int, side: int) -> LoadedWorkload:
    """Random images, then one of huge pixels, one with NaN, and one of zeros, and the models that
    fit.
    """
    pixels = (
        np.random.default_rng(4)
        .standard_normal((IMAGES + 3, channels, side, side))
        .astype(np.float32)
    )
    pixels[HUGE] *= 1e6
    pixels[BROKEN, 0, 0, 0] = np.nan
    pixels[DARK] = 0
    train = Split(inputs=pixels, labels=torch.arange(IMAGES + 3) % 10, prepare=torch.from_numpy)
    small = {"mlp": digits_mlp, "conv": digits_conv}
    return LoadedWorkload(
        name="digits" if side == 8 else "cifar10",
        train=train,
        test=train,
        num_classes=10,
        models=small if side == 8 else vision(channels, side, 10),
        defaults={"microbatch_size": 256},
    )


def text_cases(microbatch: int) -> Mapping[str, Case]:
    """Texts for a microbatch size, by the adversary's idea. The row of a text is the index of its
    length in LENGTHS.
    """
    short, long, almost, full = 0, LENGTHS.index(40), LENGTHS.index(63), LENGTHS.index(64)
    others = max(1, microbatch - 1)
    ordinary = [row % len(LENGTHS) for row in range(2 * len(LENGTHS))]
    return {
        "longest": ([short] * others + [long], others),
        "shortest": ([short] + [long] * min(others, 31), 0),
        "duplicates": ([short] * (microbatch + 1), 0),
        "unpadded": ([full] * min(others, 15) + [almost], min(others, 15)),
        "ordinary": (ordinary, full),
    }


def image_cases(microbatch: int) -> Mapping[str, Case]:
    """Images for a microbatch size: copies have aligned gradients."""
    others = max(1, microbatch - 1)
    ordinary = [row % IMAGES for row in range(min(2 * microbatch, 40) + 1)]
    return {
        "ordinary": (ordinary, 0),
        "duplicates": ([1] * (microbatch + 1), 0),
        "huge": ([2] * others + [HUGE], others),
        "not a number": ([2] * others + [BROKEN], others),
        "dark": ([DARK] + [3] * others, 0),
    }


def align(
    examples: int,
    dtype: torch.dtype = torch.float32,
    *,
    even: bool = True,
    width: int = 64,
    microbatch: int = 256,
) -> Subject:
    """A linear model whose gradients are its inputs, in one direction: all are clipped, or every
    other one is 0.6 C.

    In an ``even`` direction all coordinates are equal. Rounding then adds the same to all of them,
    along the direction in which C is measured.
    """
    model = nn.Linear(width, 1, bias=False).to(dtype)
    where = (Coordinates(name="weight", shape=(1, width)),)
    frame = Frame(coordinates=where, blocks=make_blocks(where))
    lengths = torch.full((examples,), 1.7)
    if even:
        lengths[1::2] = 0.6
    direction = (
        torch.ones(width)
        if even
        else torch.randn(width, generator=torch.Generator().manual_seed(6))
    )
    inputs = (lengths.unsqueeze(1) * nn.functional.normalize(direction, dim=0)).to(dtype)
    return of_tensors(
        model,
        frame,
        lambda outputs, _: outputs.squeeze(1).float(),
        inputs,
        torch.zeros(examples),
        microbatch_size=microbatch,
        precision=Precision(),
    )


# The old behaviour, and mistakes to plant


@contextmanager
def padded_to_the_longest() -> Iterator[None]:
    """Pad a microbatch to its longest text, in batches sorted by length."""
    with ExitStack() as stack:
        stack.enter_context(
            patch(
                "fedlsg.simulations.workloads.text_workload.PADDED_LENGTHS",
                tuple(range(2, MAX_LENGTH * 8)),
            )
        )
        stack.enter_context(
            patch.object(
                Split, "apart", lambda self, rows: [torch.argsort(self.lengths[rows], stable=True)]
            )
        )
        yield


def summed_in(dtype: torch.dtype) -> AbstractContextManager[object]:
    """Gradients, factors and sum in ``dtype``, over microbatches too."""

    def plant(
        gradients: Sequence[Tensor | GhostGradients], mechanism: Mechanism, **options: bool
    ) -> Tensor:
        blocks = [g for g in gradients if isinstance(g, Tensor)]
        squares = torch.stack([norms_of(g).square() for g in blocks]).sum(0)
        norms = squares.sqrt().nan_to_num(0.0)
        factors = clip_factors(norms, mechanism.clip_norm, dtype, sum(g[0].numel() for g in blocks))
        return torch.cat([factors @ g.flatten(1).nan_to_num().to(dtype) for g in blocks])

    return patch("fedlsg.training.client_round.clipped_sum", plant)


def float32_over_microbatches() -> AbstractContextManager[object]:
    """No float64 anywhere."""
    return patch(
        "fedlsg.training.client_round.clipped_sum",
        lambda gradients, mechanism, **_: clipped_sum(gradients, mechanism),
    )


def factors_rounded_up() -> AbstractContextManager[object]:
    """Round clip factors up to three digits."""

    def plant(
        norms: Tensor, clip_norm: float, dtype: torch.dtype, coordinates: int, *, lost: float
    ) -> Tensor:
        scale = clip_factors(norms, clip_norm, dtype, coordinates, lost=lost)
        return (scale.frexp().mantissa * 1000).ceil().div(1000).ldexp(scale.frexp().exponent)

    return patch("fedlsg.privacy.clip.clip_factors", plant)


def cancel(model: nn.Module) -> None:
    """Weights of ``cnn`` under which its hidden units are only the rounding error of a sum that
    cancels.
    """
    norm, hidden, generator = model.conv4[1], model.hidden, torch.Generator().manual_seed(1)
    half = torch.rand(len(hidden.weight), hidden.in_features // 2, generator=generator) * 1e9
    order = torch.randperm(hidden.in_features, generator=generator)
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.fill_(30.0)  # whose tanh is 1 in every place of every image
        hidden.weight.copy_(torch.cat([half, -half], 1)[:, order])
        hidden.bias.zero_()
        model.classifier.weight.mul_(3)


@contextmanager
def another_kernel_below(rows: int) -> Iterator[None]:
    """Linear layers that sum in another order for few rows, as CPU kernels do."""
    linear = nn.functional.linear

    def ordered(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return (
            linear(x, weight, bias) if len(x) >= rows else linear(x.flip(-1), weight.flip(-1), bias)
        )

    with patch("torch.nn.functional.linear", ordered):
        yield
