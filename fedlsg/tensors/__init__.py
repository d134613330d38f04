"""Memory order and products that torch lacks and several packages need."""

from fedlsg.tensors.memory_order import matrix_in_memory_order, sum_over_taps, to_kernel_order, to_memory_order
from fedlsg.tensors.products import batch_times_transposed, times_transposed

__all__ = [
    "batch_times_transposed", "matrix_in_memory_order", "sum_over_taps", "times_transposed", "to_kernel_order",
    "to_memory_order",
]  # fmt: skip
