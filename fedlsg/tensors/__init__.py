"""Helpers for memory order, products and autograd that torch lacks and several packages need."""

from fedlsg.tensors.autograd_graph import leads_to
from fedlsg.tensors.memory_order import (
    in_memory_order,
    matrix_in_memory_order,
    own_order,
    sum_over_taps,
    to_kernel_order,
    to_memory_order,
)
from fedlsg.tensors.no_autocast import without_autocast
from fedlsg.tensors.products import batch_times_transposed, times_transposed

__all__ = [
    "batch_times_transposed", "in_memory_order", "leads_to", "matrix_in_memory_order", "own_order", "sum_over_taps",
    "times_transposed", "to_kernel_order", "to_memory_order", "without_autocast",
]  # fmt: skip
