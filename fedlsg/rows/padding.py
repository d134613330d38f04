"""Padding of rows to a public list of lengths: each row grows to the next one, by its own length
alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlsg.rows.collate import in_own_memory, tensors_of
from fedlsg.tensors import fields_of

SHORTEST = 8
"""The smallest power of two to which rows are padded."""

Fill = float | Mapping[str, float] | None
"""A number with which every field is padded, or a number by field; None pads nothing."""


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Padding at the end of the first dimension of fields, which is the length of a text.

    inputs, targets: the numbers with which their fields are padded.
    lengths: the public list; empty for powers of two from 8 on.
    mask: the name of an input that is added, int64: 1 for values of the row, 0 for padding; None
        for no mask.
    Raises ValueError for lengths that are not ascending, and for a mask without padded inputs.
    """

    inputs: Fill = None
    targets: Fill = None
    lengths: tuple[int, ...] = ()
    mask: str | None = None

    def __post_init__(self) -> None:
        if list(self.lengths) != sorted({*self.lengths}) or (self.lengths and self.lengths[0] < 1):
            raise ValueError(
                f"expected lengths= of 1 or more in ascending order, got {list(self.lengths)}"
            )
        if self.mask is not None and self.inputs is None:
            raise ValueError(
                f"mask={self.mask!r} marks what was padded: give pad=, too, such as pad=0"
            )

    def of_row(
        self, inputs: Any, targets: Any, dtype: torch.dtype = torch.float32
    ) -> tuple[Any, Any]:
        """The padded row, in memory of its own; padded parts become tensors (``tensors_of``).

        Raises ValueError for a row that is longer than all ``lengths``, or has a mask already.
        """
        if self.inputs is not None:
            inputs = tensors_of(inputs, dtype)
        padded = self._pad(inputs, self.inputs)
        if self.mask is not None:
            padded = self._with_mask(padded, fields_of(inputs))
        if self.targets is not None:
            targets = tensors_of(targets, dtype)
        return padded, self._pad(targets, self.targets)

    def _pad(self, part: Any, fill: Fill) -> Any:
        """A part of a row, padded, in memory of its own."""
        if fill is None:
            return in_own_memory(part)
        if isinstance(part, Tensor):
            return self._pad_field(part, _fill_of(fill, "", part))
        return {
            str(name): self._pad_field(value, _fill_of(fill, str(name), value))
            for name, value in part.items()
        }

    def _pad_field(self, value: Tensor, number: float | None) -> Tensor:
        """A field padded with a number, or a copy if that is None."""
        if number is None:
            own: Tensor = in_own_memory(value)
            return own
        value = value if type(value) is Tensor else value.as_subclass(Tensor)
        more = self.length_of(len(value)) - len(value)
        # a copy in any case: new memory
        return torch.constant_pad_nd(value, [0, 0] * (value.ndim - 1) + [0, more], number)

    def length_of(self, length: int) -> int:
        """The padded length. Raises ValueError for one above all ``lengths``."""
        if not self.lengths:
            return max(SHORTEST, 1 << max(length - 1, 0).bit_length())
        for allowed in self.lengths:
            if length <= allowed:
                return allowed
        raise ValueError(
            f"a row is longer than the largest of lengths= ({self.lengths[-1]}): cut rows, or add "
            "a length"
        )

    def _with_mask(self, padded: Any, fields: Mapping[str, Tensor]) -> Any:
        """Padded inputs with the mask of the first padded field; ``fields``: before padding."""
        if not isinstance(padded, Mapping) or self.mask in padded:
            raise ValueError(
                f"mask={self.mask!r} needs inputs by name without this one: give each row as "
                "({'input_ids': ids}, target)"
            )
        name = next(
            name for name in fields if _fill_of(self.inputs, name, fields[name]) is not None
        )
        mask = torch.zeros(len(padded[name]), dtype=torch.int64)
        mask[: len(fields[name])] = 1
        return {**padded, self.mask: mask}


def _fill_of(fill: Fill, name: str, value: Tensor) -> float | None:
    """The number with which a field is padded; None for no padding, as of a single number."""
    if value.ndim == 0:
        return None
    return fill.get(name) if isinstance(fill, Mapping) else fill
