"""Both kernels of a product give the same numbers up to the rounding of float32."""

import pytest
import torch
from torch import nn

import fedlsg.tensors as products
from fedlsg.gradients.formulas.conv import kernel_gradient


def test_both_kernels_of_a_convolutions_carrier_gradient_agree_to_rounding(monkeypatch):
    """dR of a layer of WRN-28-4, against float64. The order of the sum over 1,024 pixels is all
    that differs.
    """
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 3, padding=1)
    v = torch.randn(5, 8, 32, 32)
    x = torch.randn(5, 64, 32, 32).contiguous(memory_format=torch.channels_last)
    exact = kernel_gradient(v.double(), x.double(), conv)
    found = []
    for wide in (True, False):
        monkeypatch.setattr(products, "mkl_uses_wide_vectors", lambda wide=wide: wide)
        found.append(kernel_gradient(v, x, conv))
        assert (found[-1] - exact).norm() < 8 * torch.finfo(torch.float32).eps * exact.norm()
    assert (found[0] - found[1]).norm() < 8 * torch.finfo(torch.float32).eps * exact.norm()


@pytest.mark.parametrize("wide", [True, False])
def test_a_row_does_not_depend_on_the_other_examples(wide, monkeypatch):
    """One product for each example: its sizes do not depend on the batch, so neither does the
    rounding.
    """
    monkeypatch.setattr(products, "mkl_uses_wide_vectors", lambda: wide)
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 3, padding=1)
    v, x = torch.randn(7, 8, 32, 32), torch.randn(7, 64, 32, 32)
    together = kernel_gradient(v, x, conv)
    assert all(torch.equal(kernel_gradient(v[:n], x[:n], conv), together[:n]) for n in (2, 3, 5))
