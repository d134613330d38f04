"""One example moves the released sum by at most C (1 + 1e-4): layers that are called, parameters
with uses, carriers that scale unevenly."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from benchmarks.privacy.neighbours import BOUND, Moved, Subject, move, of_tensors
from fedlsg import strategies
from fedlsg.carriers.probe import ProbeSource
from fedlsg.carriers.probe.synthetic import dead_leaves
from fedlsg.frame import Frame
from fedlsg.gradients.formulas.embedding_rows import RowGradients
from fedlsg.gradients.hooked_pass.precision import Precision
from fedlsg.method import Schedule
from fedlsg.privacy import Mechanism
from fedlsg.simulations.server.summary import hardware
from fedlsg.simulations.workloads.base import cross_entropy
from fedlsg.state import PublicState
from fedlsg.training import local_training as microbatches
from tests.fedlsg.support.gradient_oracle import make_frame
from tests.fedlsg.support.layer_zoo import WORDS, ZOO, loss

EXAMPLES = 33


def steep(outputs: Tensor, targets: Tensor) -> Tensor:
    """Every example is clipped."""
    return 100 * loss(outputs.float(), targets)


def build(case: str, precision: str, storage: str, microbatch: int) -> Subject:
    """A row of ordinary examples; the last but one has large numbers, or one word only."""
    model, x, y = ZOO[case].build(EXAMPLES, torch.float32)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    if x.is_floating_point():
        x[-2] *= 1e3
    else:
        x[-2] = WORDS - 1
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    stored = Precision(precision=precision, activation_storage=storage)
    return of_tensors(model, frame, steep, x, y, microbatch_size=microbatch, precision=stored)


def check(found: Moved) -> None:
    assert found.moved <= 1 + BOUND, found
    assert found.neighbours <= BOUND, found


STORED = [("float32", "float32", 7), ("bfloat16", "float32", 7), ("float32", "bfloat16", 32)]
TURNS = [
    pytest.param(case, *stored, marks=() if turn == place % 3 else pytest.mark.slow)
    for place, case in enumerate(ZOO)
    for turn, stored in enumerate(STORED)
]
"""Every layer in one precision, and all precisions in turn; the other pairs are slow."""


@pytest.mark.thinned(10)
@pytest.mark.parametrize(("case", "precision", "storage", "microbatch"), TURNS)
def test_one_example_moves_the_sum_by_c(case, precision, storage, microbatch):
    made = build(case, precision, storage, microbatch)
    for leaves in (0, EXAMPLES - 2):
        found = move(made, range(EXAMPLES), leaves)
        # an example of large numbers may have no gradient
        assert leaves or found.moved > 0.99, found
        check(found)


@pytest.mark.parametrize("case", ["tied", "bag of words", "parameters, words, positions"])
def test_one_example_moves_the_sum_by_c_where_nothing_is_formed(case, monkeypatch):
    """Rows and factors, however small the table."""
    monkeypatch.setattr("fedlsg.gradients.formulas.embedding_rows.worth_it", lambda weight: True)
    monkeypatch.setattr(
        "fedlsg.gradients.formulas.embedding_rows.product_is_cheaper", lambda weight, g: True
    )
    test_one_example_moves_the_sum_by_c(case, "float32", "float32", 32)


def test_negative_control_norms_of_rows_before_equal_ones_are_added(monkeypatch):
    """An example that reads one word often has a longer gradient than its rows say."""

    def apart(self: RowGradients) -> Tensor:
        return self.g.double().flatten(1).norm(dim=1)

    monkeypatch.setattr(RowGradients, "norms", apart)
    made = build("bag of words", "float32", "float32", 32)
    assert move(made, range(EXAMPLES), EXAMPLES - 2).moved > 1 + BOUND


@pytest.mark.parametrize(
    ("power", "damping"), [(0.5, 1e-2), (1.0, 1e-2), (1.0, 1e-6), (0.5, 1e-12)]
)
def test_one_example_moves_unevenly_scaled_gradients_by_c(power, damping):
    """All rows lie in the direction that dp-kfc scales most, by 1e6 at worst, so that rounding is
    scaled with them.
    """
    for found in moves_of(*scaled_most(power, damping)):
        check(found)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("microbatch", "expected"), [(5, 1e4), (7, 1e4), (11, 1e4), (64, 0.5), (64, 2.0)]
)
def test_so_where_the_others_move_up_by_one_place(microbatch, expected):
    check(moved_up(microbatch, expected))


def test_microbatches_of_five_rows_are_noticed_where_the_others_move_up(monkeypatch):
    """Negative control of the test above: rows at the end of five are rounded by themselves."""
    monkeypatch.setattr(microbatches, "ROWS_ON_CPU", 1)
    check_noticed(moved_up(5, 1e4).neighbours)


def check_noticed(moved: float) -> None:
    """A planted batch of another shape is above the bound, on processors that round a row by the
    shape of its batch.

    Measured: AMD EPYC does, by up to 4.7 C in these cases. An Intel Xeon moves them by at most 4e-7
    C.
    """
    if moved <= BOUND and "AMD" not in str(hardware("cpu")["processor"]):
        pytest.skip(
            f"this processor rounds rows nearly alike in all shapes of a batch (moved {moved:.1e} "
            "C)"
        )
    assert moved > BOUND


def moved_up(microbatch: int, expected: float) -> Moved:
    """A row of zeros leaves, before 20 microbatches whose last row lies in the direction that
    dp-kfc scales most.
    """
    model, frame, direction = scaled_most(1.0, 1e-6)
    inputs = torch.zeros(20 * microbatch + 1, direction.shape[1])
    inputs[microbatch::microbatch] = direction
    targets = torch.full((len(inputs),), 3)
    local = {"expected_batch": expected, "microbatch_size": microbatch}
    return move(
        of_tensors(model, frame, cross_entropy, inputs, targets, **local), range(len(inputs)), 0
    )


@pytest.mark.parametrize(("clip_norm", "residual_clip"), [(1.0, 1e-6), (1e-6, 0.4)])
def test_one_example_moves_embeddings_that_leave_nothing_by_c(clip_norm, residual_clip):
    """The rest is the rounding of a gradient that L spans, and is clipped by itself."""
    model, frame, rows = spanned(clip_norm, residual_clip)
    assert frame.one_shape
    assert max(moved_by(model, frame, rows, clip_norm)) <= 1 + BOUND


def test_rows_that_are_not_of_one_shape_are_noticed_where_an_embedding_leaves_nothing():
    """Negative control of the test above."""
    model, frame, rows = spanned(1e-6, 0.4)
    check_noticed(max(moved_by(model, replace(frame, one_shape=False), rows, 1e-6)) - 1)


def moved_by(
    model: nn.Module, frame: Frame, row: torch.Tensor, clip_norm: float
) -> Iterator[float]:
    """The first of some equal rows leaves; shares of C."""
    for count in (4, 5, 8):
        made = of_tensors(
            model, frame, cross_entropy, row.expand(count, -1), torch.full((count,), 3)
        )
        mechanism = Mechanism(kind="clip-only", clip_norm=clip_norm)
        made = Subject(**{**vars(made), "mechanism": mechanism})
        yield move(made, range(count), 0).moved


def test_rows_that_are_not_of_one_shape_are_noticed_where_scales_are_uneven():
    """Negative control of the test above."""
    model, frame, direction = scaled_most(1.0, 1e-6)
    check_noticed(
        max(
            found.neighbours
            for found in moves_of(model, replace(frame, one_shape=False), direction)
        )
    )


def moves_of(model: nn.Module, frame: Frame, direction: torch.Tensor) -> Iterator[Moved]:
    """Of the first of 4 or 8 rows in a direction."""
    for sign, label, count in product((1, -1), (0, 3), (4, 8)):
        inputs, targets = sign * direction.expand(count, -1), torch.full((count,), label)
        yield move(
            of_tensors(model, frame, cross_entropy, inputs, targets, expected_batch=8.0),
            range(count),
            0,
        )


def probed(
    model: nn.Module, side: int, name: str, *, scale: float = 1.0, **settings: float
) -> Frame:
    """The frame of a recipe that probes ``model`` with leaves of side x side pixels."""
    source = ProbeSource(
        name="leaves",
        draw=lambda count, generator: scale * leaves(count, side, generator) - (scale - 1),
        loss=cross_entropy,
        num_classes=10,
    )
    method = strategies.recipe(name, **{"noise_multiplier": 1.0, **settings})
    state = PublicState.start(
        model, method, Schedule(rounds=1), seed=0, classifier=None, source=source
    )
    return state.frame(1, updates=0)


def leaves(count: int, side: int, generator: torch.Generator) -> torch.Tensor:
    return dead_leaves(count, (1, side, side), generator).flatten(1)


def spanned(clip_norm: float, residual_clip: float) -> tuple[nn.Module, Frame, torch.Tensor]:
    """A layer of 640 parameters, a frame of gep whose L spans them, and a row."""
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    frame = probed(
        model, 8, "gep", rank=640, residual_clip=residual_clip, clip_norm=clip_norm, probes=700
    )
    return model, frame, leaves(1, 8, torch.Generator().manual_seed(5))


def scaled_most(power: float, damping: float) -> tuple[nn.Module, Frame, torch.Tensor]:
    """A network, the frame of dp-kfc, and the input (1, 256) that it scales most."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
    frame = probed(model, 16, "dp-kfc", scale=2.0, power=power, damping=damping, probes=200)
    direction = torch.linalg.svd(frame.coordinates[0].R.double())[2][-1:]
    return model, frame, (direction / direction.abs().max()).float()
