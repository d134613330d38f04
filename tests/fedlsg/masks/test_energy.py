"""Masks by the energy that a probe predicts: the best entries of S, the best units; public, never empty."""

import pytest
import torch
from torch import Tensor

from fedlsg.forms import FORMS
from fedlsg.frame import Coordinates, make_blocks
from fedlsg.masks import Mask
from fedlsg.masks.mask import apply_mask
from fedlsg.public import Public

OUT, IN = torch.tensor([4.0, 2.0, 1.0]), torch.tensor([8.0, 4.0, 3.0, 0.0])
CORE = Coordinates(name="W", shape=(6, 5), L=torch.zeros(6, 3), R=torch.zeros(4, 5), form=FORMS["core"])
KERNEL = Coordinates(name="W", shape=(3, 4, 2, 2), L=torch.zeros(3, 2), R=torch.zeros(2, 16))
BIAS = Coordinates(name="b", shape=(6,))


def kept(mask: Mask, c: Coordinates) -> list[Tensor]:
    public = Public(weights={"W": torch.zeros(c.shape), "b": torch.zeros(6)}, energies={"W": (OUT, IN)})
    return [block.keep.positions(block.shape) for block in apply_mask(make_blocks([c, BIAS]), mask, public)]


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.5, 0.9])
def test_entries_of_the_largest_product_of_energies_are_kept(sparsity):
    core, bias = kept(Mask(kind="energy", sparsity=sparsity), CORE)
    energy = (OUT.unsqueeze(1) * IN).flatten()
    frozen = int(sparsity * 12 + 1e-9)
    left = torch.ones(12, dtype=torch.bool).index_fill(0, core, False)
    assert (len(core), len(bias)) == (12 - frozen, 6)
    if frozen:
        assert energy[core].min() >= energy[left].max()
        assert energy[core].sum() == pytest.approx(float(energy.sort(descending=True).values[: 12 - frozen].sum()))


def test_units_by_predicted_energy():
    """Rows of dL by the out units' energy, channels of dR with all of their taps by the in units'."""
    left, right, bias = kept(Mask(kind="units", sparsity=0.5, importance="energy"), KERNEL)
    assert left.tolist() == [0, 1, 2, 3]
    assert right.tolist() == [*range(8), *range(16, 24)]
    assert len(bias) == 6
    bottom, _, _ = kept(Mask(kind="units", sparsity=0.5, importance="energy", direction="bottom"), KERNEL)
    assert bottom.tolist() == [2, 3, 4, 5]
