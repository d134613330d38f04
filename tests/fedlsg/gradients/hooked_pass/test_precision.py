"""Blocks in fewer bits against float64 autograd, and the privacy of a step that uses them, with
planted mistakes.

Tolerances: bfloat16 rounds to within 2^-9. Stored activations are rounded once each, and the errors
of a gradient's factors add up to less than 2^-8 here; mixed precision also rounds weights, products
and the gradients on their way.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import fedlsg.privacy.clip
import fedlsg.privacy.clip_norms
import fedlsg.training.client_round
from fedlsg.frame import Frame
from fedlsg.gradients.formulas.ghost import GhostGradients, keeps_float32_digits
from fedlsg.gradients.hooked_pass.precision import FLOAT32, Precision
from fedlsg.gradients.isolation import block_gradients, per_example_gradients
from fedlsg.gradients.per_example import summable, summed_gradient
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.clip_norms import clip_factors
from fedlsg.privacy.mechanism import Mechanism, add_noise
from fedlsg.tensors import keeps_digits
from tests.fedlsg.support.gradient_oracle import make_frame, naive
from tests.fedlsg.support.problems import Problem, cnn, make, mlp, standardised, transformer, wide
from tests.fedlsg.support.step_oracle import EMPTY, NOISY, problem

ROUNDED = 2**-8
STORED = Precision(activation_storage="bfloat16")
MIXED = Precision(precision="bfloat16")
BOTH = Precision(precision="bfloat16", activation_storage="bfloat16")
TOLERANCE = {STORED: ROUNDED, MIXED: 4 * ROUNDED, BOTH: 4 * ROUNDED}
CLIP = Mechanism(kind="clip-only", clip_norm=0.01)

fewer_bits = pytest.mark.parametrize("precision", list(TOLERANCE), ids=["stored", "mixed", "both"])


PROBLEMS = [mlp, cnn, transformer, standardised, wide]
problems = pytest.mark.parametrize("build", PROBLEMS)
carrying = pytest.mark.parametrize("carry", [True, False], ids=["carried", "dense"])


def made(build: Callable[[], Problem], carry: bool) -> tuple[Problem, Frame]:
    task = make(build, torch.float32)
    return task, make_frame(task[0], rank=2, sparsity=0.3 if carry else 0.0, carry=carry)


def one(batch: Tensor | dict[str, Tensor], i: int) -> Tensor | dict[str, Tensor]:
    """Example i as a batch of one."""
    return (
        batch[i : i + 1]
        if isinstance(batch, Tensor)
        else {name: t[i : i + 1] for name, t in batch.items()}
    )


def distances(got: list[Tensor], wanted: list[Tensor]) -> Tensor:
    """Of each example's whole gradient, relative."""
    difference = torch.cat(got, 1).double() - torch.cat(wanted, 1).double()
    return difference.norm(dim=1) / torch.cat(wanted, 1).double().norm(dim=1)


@fewer_bits
@carrying
@problems
def test_blocks_are_those_of_float64_autograd(build, carry, precision):
    (model, loss_fn, inputs, targets), frame = made(build, carry)
    doubled = inputs.double() if isinstance(inputs, Tensor) else inputs
    exact_frame = Frame(
        coordinates=tuple(
            c if c.L is None or c.R is None else replace(c, L=c.L.double(), R=c.R.double())
            for c in frame.coordinates
        ),
        blocks=frame.blocks,
    )
    wanted = naive(copy.deepcopy(model).double(), loss_fn, doubled, targets, exact_frame)
    got = per_example_gradients(model, loss_fn, inputs, targets, frame, precision=precision)
    assert {t.dtype for t in got} == {torch.float32}
    assert 1e-5 < distances(got, wanted).max() < TOLERANCE[precision]


@fewer_bits
@problems
def test_the_sum_is_that_of_the_examples(build, precision):
    (model, loss_fn, inputs, targets), frame = made(build, carry=False)
    assert summable(frame)
    wanted = torch.cat(
        [t.sum(0) for t in per_example_gradients(model, loss_fn, inputs, targets, frame)]
    )
    got = summed_gradient(model, loss_fn, inputs, targets, frame, precision=precision)
    assert got.dtype == torch.float32
    assert 1e-6 < (got - wanted).norm() / wanted.norm() < TOLERANCE[precision]


@fewer_bits
@problems
def test_an_example_counts_the_same_alone(build, precision):
    (model, loss_fn, inputs, targets), frame = made(build, carry=True)
    together = per_example_gradients(model, loss_fn, inputs, targets, frame, precision=precision)
    for i in range(len(targets)):
        own = per_example_gradients(
            model, loss_fn, one(inputs, i), targets[i : i + 1], frame, precision=precision
        )
        assert distances(own, [t[i : i + 1] for t in together]).max() < ROUNDED / 4


def contributions(build: Callable[[], Problem], carry: bool, precision: Precision) -> list[float]:
    """Length of each example's clipped contribution, in float64, over C; by ghost clipping where
    that is cheaper.
    """
    (model, loss_fn, inputs, targets), frame = made(build, carry)
    lengths = []
    for i in range(len(targets)):
        blocks = block_gradients(
            model, loss_fn, one(inputs, i), targets[i : i + 1], frame, precision=precision
        )
        assert any(isinstance(block, GhostGradients) for block in blocks) == (
            build is wide and not carry
        )
        lengths.append(float(clipped_sum(blocks, CLIP).double().norm()) / CLIP.clip_norm)
    return lengths


@pytest.mark.thinned(30)
@pytest.mark.parametrize(
    "precision", [FLOAT32, *TOLERANCE], ids=["float32", "stored", "mixed", "both"]
)
@carrying
@problems
def test_no_contribution_is_longer_than_the_clip_norm(build, carry, precision):
    lengths = contributions(build, carry, precision)
    assert all(length <= 1 for length in lengths)
    assert max(lengths) > 0.99


@fewer_bits
@carrying
@pytest.mark.parametrize("build", [mlp, wide])
def test_factors_of_other_numbers_than_are_summed_are_caught(build, carry, precision, monkeypatch):
    """Planted: norms of the float32 gradients, while those in fewer bits are summed."""
    (model, loss_fn, inputs, targets), frame = made(build, carry)
    broken = []
    for i in range(len(targets)):
        batch = (model, loss_fn, one(inputs, i), targets[i : i + 1], frame)
        found = iter([fedlsg.privacy.clip_norms.norms_of(t) for t in per_example_gradients(*batch)])
        blocks = block_gradients(*batch, precision=precision)
        with monkeypatch.context() as patch:
            patch.setattr(
                fedlsg.privacy.clip_norms, "norms_of", lambda *_, of=found, **__: next(of)
            )
            broken.append(float(clipped_sum(blocks, CLIP).double().norm()) / CLIP.clip_norm)
    assert not all(length <= 1 for length in broken)


def longest_under_autocast() -> float:
    # In another memory order: autocast does not reach the product of others, which is written into
    # the sum.
    rows = torch.randn(200, 1, 8, 5, generator=torch.Generator().manual_seed(0)).mT
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return max(float(clipped_sum([row], CLIP).double().norm()) for row in rows) / CLIP.clip_norm


def test_a_callers_autocast_has_no_hold_of_the_clip(monkeypatch):
    assert longest_under_autocast() <= 1
    monkeypatch.setattr(fedlsg.privacy.clip, "without_autocast", lambda device: nullcontext())
    assert longest_under_autocast() > 1


def deviation_and_rounding(precision: Precision) -> tuple[float, float]:
    """Of the noise of empty batches: its deviation over sigma C, and the share of values that
    bfloat16 could hold.
    """
    p = problem(dtype=torch.float32)
    sent = torch.cat(
        [p.step(NOISY, replace(EMPTY, precision=precision), seed) for seed in range(200)]
    )
    assert sent.dtype == torch.float32
    return float(sent.double().std()) / NOISY.noise_std, float(
        (sent == sent.bfloat16().float()).double().mean()
    )


@pytest.mark.thinned(1)
@fewer_bits
def test_noise_has_its_deviation_and_all_its_bits(precision, monkeypatch):
    deviation, coarse = deviation_and_rounding(precision)
    assert abs(deviation - 1) < 0.02
    assert coarse < 0.01
    monkeypatch.setattr(
        fedlsg.training.client_round,
        "add_noise",
        lambda *given: add_noise(*given).bfloat16().float(),
    )
    assert deviation_and_rounding(precision)[1] == 1


@fewer_bits
def test_float64_models_stay_exact(precision):
    model, loss_fn, inputs, targets = make(cnn)
    frame = make_frame(model, rank=2, sparsity=0.3)
    exact = per_example_gradients(model, loss_fn, inputs, targets, frame)
    got = per_example_gradients(model, loss_fn, inputs, targets, frame, precision=precision)
    assert all(torch.equal(a, b) for a, b in zip(got, exact, strict=True))


@pytest.mark.gpu
@fewer_bits
@pytest.mark.parametrize("build", [mlp, cnn, standardised, wide])
def test_blocks_on_cuda_are_near_those_of_the_cpu(build, precision):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    (model, loss_fn, inputs, targets), frame = made(build, carry=False)
    exact = per_example_gradients(model, loss_fn, inputs, targets, frame)
    batch = (model.cuda(), loss_fn, inputs.cuda(), targets.cuda(), frame)
    got = per_example_gradients(*batch, precision=precision)
    assert {(t.dtype, t.device.type) for t in got} == {(torch.float32, "cuda")}
    assert distances([t.cpu() for t in got], exact).max() < TOLERANCE[precision]
    assert clipped_sum([t[:1] for t in got], CLIP).double().norm() <= CLIP.clip_norm


BACKENDS = torch.backends
RELAXED = {
    "older": lambda: torch.set_float32_matmul_precision("high"),
    "everywhere": lambda: setattr(BACKENDS, "fp32_precision", "tf32"),
    "products of CUDA": lambda: setattr(BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
    "products of the CPU": lambda: setattr(BACKENDS.mkldnn.matmul, "fp32_precision", "bf16"),
    "convolutions of CUDA": lambda: None,
}
"""Ways to let torch round the factors of products; the last is torch's own default."""
NARROWED = {
    "older": {"cpu", "cuda"},
    "everywhere": {"cpu", "cuda"},
    "products of CUDA": {"cuda"},
    "products of the CPU": {"cpu"},
    "convolutions of CUDA": set(),
}


def as_torch_begins() -> None:
    """The older interface leaves a choice for each backend, which the newer one's for all does not
    reach.
    """
    BACKENDS.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cuda.matmul.fp32_precision = BACKENDS.mkldnn.matmul.fp32_precision = "none"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.fixture
def relaxed(request):
    as_torch_begins()
    RELAXED[request.param]()
    yield request.param
    as_torch_begins()


@pytest.mark.skipif(
    not hasattr(BACKENDS, "fp32_precision"), reason="torch has the older interface only"
)
@pytest.mark.parametrize("relaxed", RELAXED, indirect=True)
def test_tf32_by_any_interface_does_not_reach_the_clip(relaxed):
    """The factors multiply rows by products where these keep all digits, else number by number."""
    assert {device for device in ("cpu", "cuda") if not keeps_digits(device)} == NARROWED[relaxed]
    assert not keeps_float32_digits("cuda")
    rows = torch.full((2, 64), 1.00390625 * 3)
    total = clipped_sum([rows[:1], rows[1:]], CLIP)
    assert total.double().norm() <= CLIP.clip_norm


def test_negative_control_rows_in_tf32_pass_the_clip():
    """Of a row that is clipped to C, TF32 keeps 11 bits: the rounding is far beyond the clip's
    margin.
    """
    row = torch.full((1, 64), 1 + 2**-11 + 2**-20)  # is rounded up to 1 + 2^-10
    factor = clip_factors(row.double().norm(dim=1), 0.01, torch.float32, 64)
    assert (factor @ row).double().norm() <= 0.01
    assert (factor @ torch.full((1, 64), 1 + 2**-10)).double().norm() > 0.01 * (1 + 1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"
)
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_no_example_passes_the_clip_on_cuda(precision):
    """Each row alone, clipped, with and without TF32 in products."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision(precision)
    try:
        rows = torch.randn(64, 4096, device="cuda") * 1.00390625
        sums = torch.stack([clipped_sum([row.view(1, -1)], CLIP) for row in rows])
        square = nn.Linear(64, 64, bias=False)
        factors = [
            GhostGradients(square, row.view(1, 64, 64), row.view(1, 64, 64), row._version)
            for row in rows
        ]
        products = torch.stack([clipped_sum([block], CLIP) for block in factors])
    finally:
        torch.set_float32_matmul_precision("highest")
    for sent in (sums, products):
        assert (sent.double().norm(dim=1) <= CLIP.clip_norm).all()
