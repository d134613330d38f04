"""Which weights private steps and runs of this process have written: who goes on from them spends
on top of them.

Recognised are the parameters that were trained, whatever was done to them in place, and equal
numbers elsewhere: copies, files that were loaded, averages that a step made. Numbers are compared
by digests, which are kept of every step. Not recognised are numbers that were changed outside of
the trained model, and what another process has trained, unless its digests are learned (``learn``).
"""

import hashlib
from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

MIN_SAMPLED_NUMBERS = 256
"""Numbers of a parameter that its digest reads, at least, where it has so many."""
MAX_NOTED_PARAMETERS = 3
"""Parameters whose digest is kept after each step, at most: together they take less than 1 % of a
small step.
"""
MAX_DIGESTS = 100_000
"""Digests that are kept; the oldest goes first."""
DIGEST_BYTES = 8
"""Bytes of a digest. The bytes of a constant are four, and stand for themselves."""

_PARAMETERS = WeakIdKeyDictionary()
"""The parameters that were trained, each with its ``Writer``."""
_DIGESTS: "dict[bytes, Writer]" = {}
"""Digests of what was written, the oldest first."""


def digest_of(values: Tensor) -> bytes:
    """A digest of numbers that are spread over a tensor, as float32; of equal numbers the number
    itself.

    New biases and scales are constants: nobody's training can be recognised by them.
    """
    if not values.is_floating_point() or values.is_meta:
        return b""
    every = values.numel() // MIN_SAMPLED_NUMBERS | 1  # odd: not one column alone
    numbers = values.detach().flatten()[::every].float().cpu().numpy().tobytes()
    if numbers == numbers[:4] * (len(numbers) // 4):
        return numbers[:4]
    return hashlib.blake2b(numbers, digest_size=DIGEST_BYTES).digest()


class Writer:
    """One private step, or run, that writes weights. ``lasting``: its ledger is a file that its
    owner keeps.

    ``fresh_data``: its owner says that its data are others than those behind the weights that it
    starts from.
    """

    def __init__(self, *, lasting: bool = False, fresh_data: bool = False) -> None:
        self.lasting, self.fresh_data = lasting, fresh_data
        self._digests_before: dict[str, bytes] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._digests: dict[str, bytes] = {}
        """Of what it wrote last."""

    def begin(self, trained: Mapping[str, Tensor], most: int = MAX_DIGESTS) -> None:
        """Remember what ``most`` of the tensors are before they are trained: what does not move is
        nobody's.
        """
        every = (len(trained) - 1) // most + 1
        self._digests_before = {name: digest_of(trained[name]) for name in list(trained)[::every]}

    def check(self, model: nn.Module, way: str) -> None:
        """Raise ValueError, naming ``way``, for weights of another writer, whose steps this one
        would not count.

        Two that both have lasting ledgers may have one file, or files of two data sets: that is
        their owner's word.
        """
        parameters = dict(model.named_parameters())
        same = self._versions == _versions(parameters) and all(
            digest_of(parameters[name]) == digest for name, digest in self._digests.items()
        )  # numbers that were written through .data or numpy have no new version
        if self.fresh_data or same:
            return
        for name, p in model.named_parameters():
            writers = {_PARAMETERS.get(p), _DIGESTS.get(digest_of(p))} - {None, self}
            if not all(self.lasting and writer.lasting for writer in writers):
                raise ValueError(
                    f"{name} was trained by an earlier private step or run, which this one would "
                    f"not count: {way}; if the data are others, say so with fresh_data=True; or "
                    "build a new model"
                )

    @property
    def moved(self) -> list[bytes]:
        """Digests of what it wrote last, but for what did not move and for constants."""
        return [
            digest
            for name, digest in self._digests.items()
            if len(digest) == DIGEST_BYTES and digest != self._digests_before[name]
        ]

    def note(self, written: Mapping[str, Tensor]) -> None:
        """Remember that these tensors are now what was trained; frozen ones, and those that did not
        move, are not.
        """
        for name, tensor in written.items():
            known = name in self._digests_before
            digest = digest_of(tensor) if known else b""
            if known and digest == self._digests_before[name]:
                continue
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                _PARAMETERS[tensor] = self
            if len(digest) == DIGEST_BYTES:
                _DIGESTS.pop(digest, None)  # it becomes the newest
                _DIGESTS[digest] = self
        self._versions = _versions(written)
        self._digests = {
            name: digest_of(written[name]) for name in self._digests_before.keys() & written
        }
        while len(_DIGESTS) > MAX_DIGESTS:
            del _DIGESTS[next(iter(_DIGESTS))]


def learn(digests: Iterable[bytes], *, lasting: bool = False) -> None:
    """Count numbers of these digests as trained by another process; ``lasting``: as in
    ``Writer``.
    """
    earlier = Writer(lasting=lasting)
    for digest in digests:
        _DIGESTS.setdefault(digest, earlier)


def follow(model: nn.Module, copied: nn.Module) -> None:
    """Count the parameters of a copy that fedlsg made as those of the model itself, whatever was
    done to these.
    """
    for p, twin in zip(model.parameters(), copied.parameters(), strict=True):
        if writer := _PARAMETERS.get(p):
            _PARAMETERS[twin] = writer


def _versions(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The version and the place of each tensor: they change with its numbers."""
    return {
        name: (0 if p.is_inference() else p._version, p.data_ptr())
        for name, p in parameters.items()
    }
