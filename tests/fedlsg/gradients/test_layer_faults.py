"""What torch says of sizes and types of a layer's inputs, in the numbers of the layer and of the
inputs; other errors stay as they are.
"""

import pytest
import torch
from torch import nn

from fedlsg.gradients.layer_faults import layer_fault

ROWS, IMAGES = torch.randn(2, 8), torch.randn(2, 3, 6, 6)


def failed(layer: nn.Module, given: torch.Tensor) -> Exception:
    with pytest.raises(RuntimeError) as error:
        layer(given)
    return error.value


@pytest.mark.parametrize(
    ("layer", "given", "inputs", "said"),
    [
        (
            nn.Linear(7, 16),
            ROWS,
            ROWS,
            "takes 7 numbers a row, and the inputs have 8 columns: give it 8, nn.Linear(8, 16), or inputs of 7",
        ),
        (
            nn.Linear(12, 3),
            torch.randn(2, 16),
            ROWS,
            "takes 12 numbers a row, and gets 16 from the layers before: give it 16, "
            "nn.Linear(16, 3)",
        ),
        (
            nn.Linear(108, 3),
            IMAGES,
            IMAGES,
            "takes 108 numbers a row, and gets inputs of shape (3, 6, 6): put nn.Flatten() before it",
        ),
        (
            nn.Conv2d(1, 4, 3),
            IMAGES,
            IMAGES,
            "takes 1 channels, and an image has 3 channels: give it in_channels=3, or images of "
            "shape (1, height, width)",
        ),
        (
            nn.Linear(8, 3),
            ROWS.long(),
            ROWS.long(),
            "has weights of float32, and the inputs are int64: give numbers of its type, "
            "x.astype('float32'), or begin with a layer that takes integers, such as nn.Embedding",
        ),
        (
            nn.Conv2d(3, 4, 3),
            IMAGES.long(),
            {"pixels": IMAGES.long()},
            "has weights of float32, and the inputs are int64: give numbers of its type, "
            "x.astype('float32'), or begin with a layer that takes integers, such as nn.Embedding",
        ),
    ],
)
def test_a_fault_names_the_layers_numbers_and_those_of_the_inputs(layer, given, inputs, said):
    assert layer_fault(layer, failed(layer, given), inputs) == said


def test_another_error_stays_as_it_is():
    kernel = nn.Conv2d(3, 4, 9)
    assert layer_fault(kernel, failed(kernel, IMAGES), IMAGES) is None
    assert layer_fault(nn.Linear(8, 3), RuntimeError("CUDA out of memory"), ROWS) is None
