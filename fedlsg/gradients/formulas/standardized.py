"""A convolution with standardized filters, and the gradient of its stored weight.

Symbols: W (m, n) weight as stored, n = c * kh * kw, one filter a row; sums over one row
    v = sum (W - mean)^2     s = 1 / sqrt(max(v, eps))     K = s (W - mean), the kernel in use
    G (m, n) gradient of a loss with respect to K    S = G 1 (m,)     A_i = <G_i, K_i> (m,)
    dW = diag(s) (G - S 1^T / n - diag(A) K),  without the last term in a row where v <= eps
(Brock et al. 2021, "Characterizing signal propagation", and De et al. 2022, without their gain of
each filter.) Both S and A are sums over the positions t of one example: with g the gradient at the
output, y the output without its bias, and p the sum of the input under the kernel,
    S = sum_t g(t) p(t)        A = sum_t g(t) y(t)
The layer has g, p and y. So the gradients of a carried weight, r wide, need no (m, n) gradient of
an example:
    dL = dW R^T = diag(s) (G R^T - S (R 1)^T / n - diag(A) K R^T)
    dR = L^T dW = (diag(s) L)^T G - (L^T diag(s) S) 1^T / n - L^T diag(s) diag(A) K
    L^T dW R^T = (diag(s) L)^T G R^T - (L^T diag(s) S) (R 1)^T / n - L^T diag(s) diag(A) K R^T
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

Outputs = Float[Tensor, "batch m oh ow"]

EPS = 1e-4
"""eps: the least v by which a filter is divided."""


class StandardizedConv2d(nn.Conv2d):
    """Conv2d whose filters have mean 0 and norm 1 for any stored weights.

    The bias is added unchanged. A scaled or shifted filter gives the same output, so its gradient
    is orthogonal to the filter and to constants. (A filter with v <= eps has a smaller norm.)
    Differs from De et al. 2022: no gain.
    """

    def forward(self, input: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b m oh ow"]:
        kernel = standardize(self.weight.flatten(1)).kernel
        y: Tensor = self._conv_forward(input, kernel.reshape(self.weight.shape), self.bias)
        return y


@dataclass(frozen=True, eq=False)
class Standardized:
    """A standardized weight.

    kernel: K.
    scale: s.
    counts: 1 where v > eps, so that K depends on the norm of W, else 0.
    """

    kernel: Float[Tensor, "m n"]
    scale: Float[Tensor, " m"]
    counts: Float[Tensor, " m"]


def standardize(W: Float[Tensor, "m n"]) -> Standardized:
    """The kernel that the convolution uses for a stored weight. Differentiable in W."""
    centred = W - W.mean(1, keepdim=True)
    v = torch.linalg.vector_norm(centred, dim=1).square()  # 20 times as fast as var
    scale = v.clamp(min=EPS).rsqrt()
    return Standardized(centred * scale.unsqueeze(1), scale, (v > EPS).to(W.dtype))


def scales(W: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    """s: the scale of ``standardize``."""
    norms: Tensor = torch.linalg.vector_norm(W - W.mean(1, keepdim=True), dim=1)
    return norms.square().clamp(min=EPS).rsqrt()


def pull_back(
    G: Float[Tensor, "batch m n"], standardized: Standardized
) -> Float[Tensor, "batch m n"]:
    """dW of each example from its gradient G with respect to the kernel: dense, linear in G."""
    K, s = standardized.kernel, standardized.scale
    A = torch.einsum("bmn,mn->bm", G, K) * standardized.counts
    return s.unsqueeze(1) * (G - G.mean(2, keepdim=True) - A.unsqueeze(2) * K)


@dataclass(eq=False)
class OutputNote:
    """What the gradients of a carried weight need of one call, in addition to u and x.

    y: the output, with the bias. Usually it costs no memory: the norm after the convolution keeps
        its input in any case.
    patch_sums: p, the sum of the input under the kernel.
    bias: of the layer, or None.
    standardized: the weight at the time of the call.
    version: in-place version of y.
    """

    y: Outputs
    patch_sums: Float[Tensor, "batch 1 oh ow"]
    bias: Float[Tensor, " m"] | None
    standardized: Standardized
    version: int
    _sums: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    @property
    def changed(self) -> bool:
        """Whether y was changed in place after the call."""
        return self.y._version != self.version

    def sums(self, g: Outputs) -> tuple[Float[Tensor, "batch m"], Float[Tensor, "batch m"]]:
        """s S / n and s A of each example, computed once; A is 0 in rows where v <= eps."""
        if self._sums is None:
            K, s = self.standardized.kernel, self.standardized.scale
            flat = g.flatten(2)
            S = (flat @ self.patch_sums.flatten(2).mT).squeeze(2)
            A = (flat * self.y.flatten(2)).sum(2)
            if self.bias is not None:
                A = A - self.bias * flat.sum(2)
            self._sums = s / K.shape[1] * S, s * self.standardized.counts * A
        return self._sums


def note_output(
    conv: StandardizedConv2d, x: Float[Tensor, "batch c h w"], y: Outputs
) -> OutputNote:
    """The note of one call of ``conv``."""
    ones = x.new_ones(1, 1, *conv.kernel_size)
    return OutputNote(
        y=y,
        patch_sums=F.conv2d(
            x.sum(1, keepdim=True), ones, None, conv.stride, conv.padding, conv.dilation
        ),
        bias=None if conv.bias is None else conv.bias.detach(),
        standardized=standardize(conv.weight.detach().flatten(1)),
        version=y._version,
    )


def finish_left(
    GR: Float[Tensor, "batch kept r"],
    g: Outputs,
    R: Float[Tensor, "r n"],
    note: OutputNote,
    index: Int[Tensor, " kept"] | None,
) -> Float[Tensor, "batch kept r"]:
    """dL from G R^T, both for the out units ``index`` (all if it is None)."""
    S, A = note.sums(g)  # here and below with their factors s / n and s
    scale, KR = note.standardized.scale, note.standardized.kernel @ R.mT
    if index is not None:
        index = index.to(g.device)
        S, A, scale, KR = S[:, index], A[:, index], scale[index], KR[index]
    return scale.unsqueeze(1) * GR - S.unsqueeze(2) * R.sum(1) - A.unsqueeze(2) * KR


def finish_right(
    vx: Float[Tensor, "batch r kept taps"],
    g: Outputs,
    L: Float[Tensor, "m r"],
    note: OutputNote,
    index: Int[Tensor, " kept"] | None,
) -> Float[Tensor, "batch r kept taps"]:
    """dR from (diag(s) L)^T G, both for the in channels ``index`` (all if it is None)."""
    S, A = note.sums(g)
    K = note.standardized.kernel.unflatten(1, (-1, vx.shape[3]))
    if index is not None:
        K = K[:, index.to(g.device)]
    AL: Tensor = A.unsqueeze(1) * L.mT  # (B, r, m)
    AK = (AL.flatten(0, 1) @ K.flatten(1)).reshape(vx.shape)
    dR: Tensor = vx - (S @ L).reshape(*vx.shape[:2], 1, 1) - AK
    return dR


def finish_core(
    vu: Float[Tensor, "batch r s"],
    g: Outputs,
    L: Float[Tensor, "m r"],
    R: Float[Tensor, "s n"],
    note: OutputNote,
) -> Float[Tensor, "batch r s"]:
    """L^T dW R^T from (diag(s) L)^T G R^T."""
    S, A = note.sums(g)
    AL: Tensor = A.unsqueeze(1) * L.mT  # (B, r, m)
    core: Tensor = vu - (S @ L).unsqueeze(2) * R.sum(1) - AL @ (note.standardized.kernel @ R.mT)
    return core
