"""JSON of numbers, also of those that JSON has no word for."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any


def json_text(value: Any, *, indent: int = 1, not_finite: Callable[[float], str | None] = lambda number: None) -> bytes:
    """The bytes of a JSON file; ``not_finite`` replaces NaN and infinity."""
    return (json.dumps(finite(value, not_finite), indent=indent) + "\n").encode()


def finite(value: Any, not_finite: Callable[[float], str | None] = lambda number: None) -> Any:
    """The same values with ``not_finite`` of those that JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(key): finite(item, not_finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, not_finite) for item in value]
    return not_finite(value) if isinstance(value, float) and not math.isfinite(value) else value
