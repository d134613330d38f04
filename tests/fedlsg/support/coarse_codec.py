"""A codec in a file of its own, with a setting of its own, which no other file knows."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlsg.payload import codecs

COARSE = '''"""Two bytes a value: the nearest multiple of one step."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from fedlsg.payload.codecs import Codec
from fedlsg.config import Setting


@dataclass(frozen=True, kw_only=True)
class Coarse(Codec):
    coarse_step: Annotated[float, Setting("Distance between two points of the grid.", above=0, below=math.inf)] = 0.25

    def check(self, method):
        if method.carrier.kind == "factors":
            raise ValueError(f"codec {self.name!r} does not send factors")

    def encode(self, values, counts, dither, round):
        steps = torch.round(values / self.coarse_step)
        if len(steps) and steps.abs().max() > 32767:
            raise ValueError("values beyond 32767 steps")
        return steps.to(torch.int16).numpy().astype("<i2").tobytes()

    def decode(self, body, counts, dither, round, *, max_norm):
        if len(body) != 2 * sum(counts):
            raise ValueError(f"payload length: expected {2 * sum(counts)} bytes of values, got {len(body)}")
        return torch.from_numpy(np.frombuffer(body, "<i2").astype(np.float32)) * self.coarse_step

    def rounding_bound(self, dither, count, max_norm):
        return self.coarse_step / 2 * math.sqrt(count)


CODEC = Coarse(name="coarse", wire_id=100)
'''


@contextmanager
def planted(folder: Path, **files: str) -> Iterator[None]:
    """Files of ``folder`` are codecs, too: ``coarse`` by default, else each of ``files`` by
    name.
    """
    for name, source in (files or {"coarse": COARSE}).items():
        (folder / f"{name}.py").write_text(source)
    shipped = codecs.__path__
    codecs.__path__ = [*shipped, str(folder)]
    codecs.all_codecs.cache_clear()
    try:
        yield
    finally:
        codecs.__path__ = shipped
        codecs.all_codecs.cache_clear()
        for path in folder.glob("*.py"):
            sys.modules.pop(f"{codecs.__name__}.{path.stem}", None)
