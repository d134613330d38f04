"""Which weights private steps and runs of this process have written: who goes on from them spends
on top of them.

Recognised are the parameters that a step was to train, whatever was done to them in place, as soon
as it has moved one of them; and equal numbers elsewhere: copies, files that were loaded, averages
that a step made. Numbers are compared by digests of all of them (``weight_digest``), which are kept
of every step, so a method that moves one number of a thousand is seen, and what did not move is
nobody's. Not recognised are numbers that were changed outside of the trained model, and what
another process has trained, unless its digests are learned (``learn``).
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from fedlsg.privacy.weight_digest import DIGEST_BYTES, digests_of

MAX_NOTED_PARAMETERS = 3
"""Parameters, of those that moved, whose digests are kept after each step, at most."""
MAX_DIGESTS = 100_000
"""Digests that are kept; the oldest goes first."""

SAMPLED = 256
"""Numbers of a parameter by which weights that somebody else wrote over it are noticed."""

_PARAMETERS = WeakIdKeyDictionary()
"""The parameters that were trained, each with its ``Writer``."""
_DIGESTS: "dict[bytes, Writer]" = {}
"""Digests of what was written, the oldest first."""


def moved_digests(
    tensors: Mapping[str, Tensor], before: Mapping[str, tuple[bytes, ...]]
) -> dict[str, list[bytes]]:
    """Digests of what others may have: by name, of the tensors that are not as ``before``, without
    constants.
    """
    return _moved(digests_of(tensors), before)


def spread(names: list[str], most: int) -> list[str]:
    """At most ``most`` of the names, from everywhere."""
    return names[:: (len(names) - 1) // most + 1] if names else []


class Writer:
    """One private step, or run, that writes weights. ``lasting``: its ledger is a file that its
    owner keeps.

    ``fresh_data``: its owner says that its data are others than those behind the weights that it
    starts from.
    """

    def __init__(self, *, lasting: bool = False, fresh_data: bool = False) -> None:
        self.lasting, self.fresh_data = lasting, fresh_data
        self._most = MAX_DIGESTS
        self._before: dict[str, tuple[bytes, ...]] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._digests: dict[str, tuple[bytes, ...]] = {}
        """Of what it wrote last."""
        self._sampled = torch.empty(0)
        """Some numbers of that."""

    def begin(self, trained: Mapping[str, Tensor], most: int = MAX_DIGESTS) -> None:
        """Remember what the tensors are before they are trained: what does not move is nobody's.
        ``most``: tensors of which a digest is kept after each step.
        """
        self._before, self._most = digests_of(trained), most

    def check(self, model: nn.Module, way: str) -> None:
        """Raise ValueError, naming ``way``, for weights of another writer, whose steps this one
        would not count.

        Two that both have lasting ledgers may have one file, or files of two data sets: that is
        their owner's word.
        """
        parameters = dict(model.named_parameters())
        if self.fresh_data or self._wrote(parameters):
            return
        tensors = parameters | dict(model.named_buffers())  # weights may be frozen as buffers
        digests = digests_of(tensors)
        for name, tensor in tensors.items():
            writers = {_PARAMETERS.get(tensor), *map(_DIGESTS.get, digests[name])} - {None, self}
            if not all(self.lasting and writer.lasting for writer in writers):
                raise ValueError(
                    f"{name} was trained by an earlier private step or run, which this one would "
                    f"not count: {way}; if the data are others, say so with fresh_data=True; or "
                    "build a new model"
                )

    def _wrote(self, parameters: Mapping[str, Tensor]) -> bool:
        """Whether these are what it wrote last, by versions and by some numbers: other weights that
        were written through .data or numpy have no new version.
        """
        if not self._versions or self._versions != _versions(parameters):
            return False
        now = _samples(parameters[name] for name in self._digests)
        return torch.equal(now, self._sampled)

    @property
    def moved(self) -> list[bytes]:
        """Digests that are kept of what it wrote last."""
        moved = _moved(self._digests, self._before)
        return [digest for name in spread([*moved], self._most) for digest in moved[name]]

    def note(self, written: Mapping[str, Tensor]) -> None:
        """Remember that these tensors are now what was trained; what was not to be trained is
        not, and nothing is where no number has moved.
        """
        self._versions = _versions(written)
        trained = {n: t for n, t in written.items() if n in self._before}
        self._digests, self._sampled = digests_of(trained), _samples(trained.values())
        if all(digests == self._before[name] for name, digests in self._digests.items()):
            return
        for name in self._digests:
            tensor = written[name]
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                _PARAMETERS[tensor] = self
        for digest in self.moved:
            _DIGESTS.pop(digest, None)  # it becomes the newest
            _DIGESTS[digest] = self
        while len(_DIGESTS) > MAX_DIGESTS:
            del _DIGESTS[next(iter(_DIGESTS))]


def _samples(tensors: Iterable[Tensor]) -> Tensor:
    """At most some SAMPLED numbers of each real tensor, from all of it, whatever devices they are
    on.
    """
    real = [tensor for tensor in tensors if tensor.is_floating_point() and not tensor.is_meta]
    flat = [tensor.detach().flatten() for tensor in real]
    some = [each[:: len(each) // SAMPLED + 1].float().cpu() for each in flat]
    return torch.cat(some) if some else torch.empty(0)


def _moved(
    digests: Mapping[str, tuple[bytes, ...]], before: Mapping[str, tuple[bytes, ...]]
) -> dict[str, list[bytes]]:
    new = {
        name: [d for d in each if len(d) == DIGEST_BYTES and d not in before.get(name, ())]
        for name, each in digests.items()
    }
    return {name: each for name, each in new.items() if each}


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
