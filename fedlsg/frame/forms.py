"""Forms: what is sent of a carried weight, and how the server lifts it to a gradient; one class for
each.

Symbols: W (m, n) a weight, a kernel flattened; dW its gradient; L (m, r), R (s, n) its carriers.

    name              sent                        lifted to
    tangent           dL = dW R^T, dR = L^T dW    dL R + L dR - L L^T dL R (Eq. 3)
    left              dL = dW R^T                 dL R
    core              S = L^T dW R^T              L S R
    preconditioned    S = L^T dW R^T              S
    embedding         w = L^T dW, rest = dW - L w L w + rest
    embedding-only    w = L^T dW                  L w

In ``tangent`` and ``left`` (the published code of Yu et al. 2021 for images) r = s, and L, R are
orthonormal. In ``preconditioned`` L and R are square. In the embeddings W is flattened to one
column (m, 1), and R is (1, 1).
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
"""The blocks that are sent of a weight, in the order of ``Form.parts``."""

Dims = tuple[int, ...]
Matrix = Float[Tensor, "m n"]

Part = Literal["L", "R", "core", "rest", "dense"]
FormName = Literal["tangent", "left", "core", "preconditioned", "embedding", "embedding-only"]


class Sizes(NamedTuple):
    """Sizes of a carried weight (m, n), and of its carriers L (m, r) and R (s, n)."""

    m: int
    r: int
    s: int
    n: int


class Form(ABC):
    """A form.

    name: in settings.
    parts: the blocks that a carried weight makes of a step, in order.
    embeds: whether every parameter is embedded, as one column.
    orthonormal: whether columns of L and rows of R must be orthonormal.
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
        """Whether a weight sends less than ``share`` of the values that it has."""
        return self.values(sizes) < share * sizes.m * sizes.n

    def energies(self, sizes: Sizes, W: Tensor) -> tuple[int, int]:
        """Numbers of rows and of columns for which a probe predicts energies of what is sent."""
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
        """The blocks with the two copies of the r x r core averaged (``average_core``), if there
        are two.
        """
        return sent

    def add(self, W: Tensor, sent: Sent, L: Tensor, R: Tensor, scale: float) -> None:
        """W += scale * lift, in place; forms may do it without a tensor of W's size."""
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
        """(m, r) of dL; (r, n) of dR, or (r, c, kh * kw) for a convolution: axis 1 counts in
        units.
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
    """The form of a name, of those in ``known``.

    Raises ValueError for another name, for a rank of 0 in a form that has one, and for ``out_rank``
    in any form but core.
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
