"""Yogi as a server optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Yogi(Optimizer):
    """Yogi (Zaheer et al. 2018; Reddi et al. 2021, Algorithm 2, FedYogi).

    Symbols: g_t the noisy gradient, the paper's -Delta_t; tau = eps, the degree of adaptivity;
    m_0 = 0, v_0 = tau^2.
        m <- b1 m + (1 - b1) g
        v <- v - (1 - b2) g^2 sign(v - g^2)
        W <- W - lr m / (sqrt(v) + tau)
    v moves by a share of g^2 and not of their difference, so that it falls slowly after large
    gradients. As in the paper there is no bias correction. ``weight_decay`` adds W times it to g,
    as in Adam.
    Raises ValueError for numbers out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas) or not 0 < eps < float("inf"):
            raise ValueError(f"expected 0 <= {betas=} < 1 and 0 < {eps=} < inf")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            (first, second), tau = group["betas"], group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, buffers = p.grad.add(p, alpha=group["weight_decay"]), self.state[p]
                if not buffers:
                    buffers |= {
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.full_like(p, tau**2),
                    }
                buffers["exp_avg"].lerp_(g, 1 - first)
                square = g.square()
                buffers["exp_avg_sq"].addcmul_(
                    square, (buffers["exp_avg_sq"] - square).sign(), value=second - 1
                )
                p.addcdiv_(
                    buffers["exp_avg"], buffers["exp_avg_sq"].sqrt().add_(tau), value=-group["lr"]
                )
