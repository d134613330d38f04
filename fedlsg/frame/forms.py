"""What a carried weight sends, and how the server lifts it to a gradient of the weight: one class
for each form.

Symbols: W (m, n) a weight, a kernel flattened; dW its gradient; L (m, r), R (s, n) its carriers.
    tangent           dL = dW R^T, dR = L^T dW    dW = dL R + L dR - L L^T dL R (Eq. 3); r = s,
                      orthonormal
    left              dL = dW R^T                 dL R (the published code of Yu et al. 2021 for
                      images)
    core              S = L^T dW R^T              L S R
    preconditioned    S = L^T dW R^T              S, for square L and R: the server's gradient as it
                      is
    embedding         w = L^T dW, dW - L w        L w + rest, where W is one column (m, 1) and R is
                      (1, 1)
    embedding-only    w                           L w
A form's ``parts`` are the blocks that a carried weight makes of a step, in order.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from fedlsg.config.choices import did_you_mean
from fedlsg.lowrank import (
    add_core,
    add_reconstruction,
    average_core,
    lift_core,
    project,
    project_core,
    reconstruct,
)

Sent = Sequence[Tensor]
"""The blocks that are sent of a weight."""

Dims = tuple[int, ...]
Matrix = Float[Tensor, "m n"]

Part = Literal["L", "R", "core", "rest", "dense"]
FormName = Literal["tangent", "left", "core", "preconditioned", "embedding", "embedding-only"]


class Sizes(NamedTuple):
    """Sizes of a carried weight (m, n), a kernel flattened, and of its carriers L (m, r) and R (s,
    n).
    """

    m: int
    r: int
    s: int
    n: int


class Form(ABC):
    """What a carried weight sends. ``embeds``: whether every parameter is embedded as one column.

    ``orthonormal``: whether columns of L and rows of R have to be orthonormal.
    """

    name: FormName
    parts: tuple[Part, ...] = ("core",)
    embeds = False
    orthonormal = True

    def __repr__(self) -> str:
        return f"the form {self.name!r}"

    @abstractmethod
    def sizes(self, W: Tensor, rank: int, out_rank: int | None) -> Sizes:
        """The sizes of the carriers of a weight."""

    def values(self, sizes: Sizes) -> int:
        """Values that an update sends for a carried weight, before a mask."""
        return sizes.r * sizes.s

    def pays(self, sizes: Sizes, share: float) -> bool:
        """Whether a weight sends clearly fewer values than it has: less than ``share`` of them."""
        return self.values(sizes) < share * sizes.m * sizes.n

    def energies(self, sizes: Sizes, W: Tensor) -> tuple[int, int]:
        """Numbers of rows and columns of what is sent, for which a probe predicts energies."""
        return sizes.r, sizes.s

    def shape(self, part: Part, shape: Dims, L: Tensor, R: Tensor) -> Dims:
        """Shape of one block of a parameter of ``shape``."""
        return (L.shape[1], R.shape[0])

    @abstractmethod
    def project(self, dW: Matrix, L: Tensor, R: Tensor) -> tuple[Tensor, ...]:
        """What is sent of a gradient, a tensor for each part. Linear in dW."""

    @abstractmethod
    def lift(self, sent: Sent, L: Tensor, R: Tensor) -> Matrix:
        """The gradient of the weight that the blocks imply. Linear in ``sent``."""

    def average(self, sent: Sent, L: Tensor, R: Tensor) -> Sent:
        """The blocks after the two copies of the r x r core, where there are two, are averaged
        (``average_core``).
        """
        return sent

    def add(self, W: Tensor, sent: Sent, L: Tensor, R: Tensor, scale: float) -> None:
        """W += scale * lift, in W's own memory where that is possible."""
        W.add_(self.lift(sent, L, R).reshape(W.shape), alpha=scale)


class Tangent(Form):
    """dL and dR, lifted by Eq. 3."""

    name: FormName = "tangent"
    parts: tuple[Part, ...] = ("L", "R")

    def sizes(self, W: Tensor, rank: int, out_rank: int | None) -> Sizes:
        m, n = W.shape[0], math.prod(W.shape[1:])
        return Sizes(m, rank, rank, n)

    def values(self, sizes: Sizes) -> int:
        return sizes.r * (sizes.m + sizes.n)

    def pays(self, sizes: Sizes, share: float) -> bool:
        return sizes.r <= min(sizes.m, sizes.n) and super().pays(sizes, share)

    def energies(self, sizes: Sizes, W: Tensor) -> tuple[int, int]:
        return sizes.m, W.shape[1]

    def shape(self, part: Part, shape: Dims, L: Tensor, R: Tensor) -> Dims:
        """That of dR is (r, n), or (r, c, kh * kw) for a convolution, so that axis 1 always counts
        in units.
        """
        if part == "L":
            return tuple(L.shape)
        return tuple(R.shape) if len(shape) == 2 else (R.shape[0], shape[1], math.prod(shape[2:]))

    def project(self, dW: Matrix, L: Tensor, R: Tensor) -> tuple[Tensor, ...]:
        return project(dW, L, R)

    def lift(self, sent: Sent, L: Tensor, R: Tensor) -> Matrix:
        return reconstruct(sent[0], sent[1].flatten(1), L, R)

    def average(self, sent: Sent, L: Tensor, R: Tensor) -> Sent:
        return average_core(sent[0], sent[1].flatten(1), L, R)

    def add(self, W: Tensor, sent: Sent, L: Tensor, R: Tensor, scale: float) -> None:
        add_reconstruction(W, sent[0], sent[1].flatten(1), L, R, scale)


class Left(Tangent):
    """dL alone, lifted to dL R: the orthogonal projection of dW onto the rows of R."""

    name, parts = "left", ("L",)

    def values(self, sizes: Sizes) -> int:
        return sizes.r * sizes.m

    def project(self, dW: Matrix, L: Tensor, R: Tensor) -> tuple[Tensor, ...]:
        return (dW @ R.mT,)

    def lift(self, sent: Sent, L: Tensor, R: Tensor) -> Matrix:
        return sent[0] @ R

    average, add = Form.average, Form.add


class Core(Form):
    """S = L^T dW R^T, lifted to L S R. Carriers of any scale: it weights rows and columns of S."""

    name: FormName = "core"
    orthonormal = False

    def sizes(self, W: Tensor, rank: int, out_rank: int | None) -> Sizes:
        m, n = W.shape[0], math.prod(W.shape[1:])
        return Sizes(m, min(out_rank or rank, m), min(rank, n), n)

    def project(self, dW: Matrix, L: Tensor, R: Tensor) -> tuple[Tensor, ...]:
        return (project_core(dW, L, R),)

    def lift(self, sent: Sent, L: Tensor, R: Tensor) -> Matrix:
        return lift_core(sent[0], L, R)

    def add(self, W: Tensor, sent: Sent, L: Tensor, R: Tensor, scale: float) -> None:
        add_core(W, sent[0], L, R, scale)


class Preconditioned(Core):
    """S of square L and R, whatever the ranks: the server's gradient as it is."""

    name = "preconditioned"

    def sizes(self, W: Tensor, rank: int, out_rank: int | None) -> Sizes:
        m, n = W.shape[0], math.prod(W.shape[1:])
        return Sizes(m, m, n, n)

    def pays(self, sizes: Sizes, share: float) -> bool:
        return True

    def lift(self, sent: Sent, L: Tensor, R: Tensor) -> Matrix:
        return sent[0]

    add = Form.add


class EmbeddingOnly(Form):
    """w = L^T dW of a weight that is one column, lifted to L w."""

    name: FormName = "embedding-only"
    embeds = True

    def sizes(self, W: Tensor, rank: int, out_rank: int | None) -> Sizes:
        return Sizes(W.numel(), min(rank, W.numel()), 1, 1)

    def project(self, dW: Matrix, L: Tensor, R: Tensor) -> tuple[Tensor, ...]:
        return (L.mT @ dW.reshape(-1, 1),)

    def lift(self, sent: Sent, L: Tensor, R: Tensor) -> Matrix:
        return lift_core(sent[0], L, R)


class Embedding(EmbeddingOnly):
    """w, and the rest dW - L w in the shape of the parameter, lifted to L w + rest."""

    name, parts = "embedding", ("core", "rest")

    def values(self, sizes: Sizes) -> int:
        return sizes.r + sizes.m

    def shape(self, part: Part, shape: Dims, L: Tensor, R: Tensor) -> Dims:
        return shape if part == "rest" else super().shape(part, shape, L, R)

    def project(self, dW: Matrix, L: Tensor, R: Tensor) -> tuple[Tensor, ...]:
        g = dW.reshape(-1, 1)
        w = L.mT @ g
        return w, g - L @ w

    def lift(self, sent: Sent, L: Tensor, R: Tensor) -> Matrix:
        return lift_core(sent[0], L, R) + sent[1].reshape(-1, 1)


TANGENT, LEFT, CORE, PRECONDITIONED = Tangent(), Left(), Core(), Preconditioned()
EMBEDDING, EMBEDDING_ONLY = Embedding(), EmbeddingOnly()
FORMS: dict[str, Form] = {
    form.name: form for form in (TANGENT, LEFT, CORE, PRECONDITIONED, EMBEDDING, EMBEDDING_ONLY)
}


def find_form(form: Form | str, rank: int, out_rank: int | None, known: Sequence[str]) -> Form:
    """The form of a name. Raises ValueError for one that is not known, or ranks that it does not
    have, or lacks.
    """
    chosen = FORMS.get(form) if isinstance(form, str) else form
    if chosen is None or chosen.name not in known:
        word = form if isinstance(form, str) else form.name
        raise ValueError(
            f"expected form in {', '.join(known)}, got {word!r}{did_you_mean(word, known)}"
        )
    if rank < 1 and chosen is not PRECONDITIONED:
        raise ValueError(f"expected rank={rank} >= 1 for low-rank carriers")
    if out_rank is not None and chosen is not CORE:
        raise ValueError(
            f"out_rank={out_rank} is for form='core': in the form {chosen.name!r} L and R have no "
            "two ranks"
        )
    return chosen
