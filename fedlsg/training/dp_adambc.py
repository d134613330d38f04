"""DP-AdamBC: Adam whose second moment has the known noise variance taken off (Tang et al. 2024).

Symbols: g_t the noisy gradient      phi_t variance of its noise, by coordinate (``noise_variances``)      k the floor
    m <- b1 m + (1 - b1) g      v <- b2 v + (1 - b2) (g^2 - phi)      W <- W - lr m' / sqrt(max(v', k))
    m' = m / (1 - b1^t)         v' = v / (1 - b2^t)                   b1 = 0.9, b2 = 0.999
Under the same noise in every step v' is the paper's v' - phi. Where phi changes (masks, carriers, missing clients), the
average takes off what each step really had. It is post-processing of noisy values: epsilon is untouched.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

BETAS = (0.9, 0.999)


class DPAdamBC(Optimizer):
    """The optimizer. ``variances`` are those of the noise in each parameter's ``.grad``: set them before each step.

    ``floor`` is the paper's gamma', in units of a squared gradient. ``weight_decay`` adds W times it to g, as in
    Adam.
    """

    def __init__(self, params: Any, *, lr: float, floor: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "floor": floor, "weight_decay": weight_decay})
        self.variances: Mapping[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient. Raises KeyError for one without a variance."""
        first, second = BETAS
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, own = p.grad.add(p, alpha=group["weight_decay"]), self.state[p]
                if not own:
                    own |= {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                    }
                own["step"] += 1
                t = int(own["step"])
                own["exp_avg"].lerp_(g, 1 - first)
                own["exp_avg_sq"].lerp_(g.square() - self.variances[p], 1 - second)
                scale = (own["exp_avg_sq"] / (1 - second**t)).clamp_(min=group["floor"]).sqrt_()
                p.addcdiv_(own["exp_avg"], scale, value=-group["lr"] / (1 - first**t))
