"""Weights that private steps and runs of this process have written: a step that starts from them
must count their epsilon, too.

The parameters that a step trains are recognised, whatever was done to them in place, as soon as it
has changed one of them. So are equal numbers elsewhere: copies, files that were loaded, averages
that a step made. Numbers are compared by digests of all of them (``weight_digest``), which are kept
of every step: a method that changes one number of a thousand is noticed, and numbers that did not
change belong to nobody. Numbers that were changed outside of the trained model are not recognised,
nor those of another process, unless its digests are added (``learn``).
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from fedlsg.privacy.weight_digest import DIGEST_BYTES, digests_of

MAX_NOTED_PARAMETERS = 3
"""Most changed parameters whose digests are kept after each step."""
MAX_DIGESTS = 100_000
"""Most digests that are kept; the oldest is removed first."""

SAMPLED = 256
"""Numbers of a parameter that are compared to notice other weights that were written over it."""

_PARAMETERS = WeakIdKeyDictionary()
"""The parameters that were trained, each with its ``Writer``."""
_DIGESTS: "dict[bytes, Writer]" = {}
"""Digests of what was written, the oldest first."""


def moved_digests(
    tensors: Mapping[str, Tensor], before: Mapping[str, tuple[bytes, ...]]
) -> dict[str, list[bytes]]:
    """Digests, by name, of the tensors that are not as ``before``; without those of constants."""
    return _moved(digests_of(tensors), before)


def spread(names: list[str], most: int) -> list[str]:
    """At most ``most`` of the names, evenly spaced."""
    return names[:: (len(names) - 1) // most + 1] if names else []


class Writer:
    """One private step, or run, that writes weights.

    lasting: whether its ledger is a file that its owner keeps.
    fresh_data: whether its owner declares that its data are other than those of the weights with
        which it starts.
    """

    def __init__(self, *, lasting: bool = False, fresh_data: bool = False) -> None:
        self.lasting, self.fresh_data = lasting, fresh_data
        self._most = MAX_DIGESTS
        self._before: dict[str, tuple[bytes, ...]] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._digests: dict[str, tuple[bytes, ...]] = {}
        """Digests of the weights that it wrote last."""
        self._sampled = torch.empty(0)
        """Some numbers of these weights."""

    def begin(self, trained: Mapping[str, Tensor], most: int = MAX_DIGESTS) -> None:
        """Remember the digests of the tensors before they are trained.

        ``most``: changed tensors whose digests are kept after each step.
        """
        self._before, self._most = digests_of(trained), most

    def check(self, model: nn.Module, way: str) -> None:
        """Raise ValueError for weights of another writer, whose steps this one would not count.

        Two writers with lasting ledgers are accepted: their owner decides whether they have one
        file, or files of two data sets. ``way``: what to do, for the message.
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
        """Whether these are the weights that it wrote last.

        Versions and some numbers are compared: writing through .data or numpy gives no new version.
        """
        if not self._versions or self._versions != _versions(parameters):
            return False
        now = _samples(parameters[name] for name in self._digests)
        return torch.equal(now, self._sampled)

    @property
    def moved(self) -> list[bytes]:
        """The digests that are kept of the weights that it wrote last."""
        moved = _moved(self._digests, self._before)
        return [digest for name in spread([*moved], self._most) for digest in moved[name]]

    def note(self, written: Mapping[str, Tensor]) -> None:
        """Remember these tensors as written by this writer, if one of the trained ones has changed.

        Tensors that ``begin`` did not get are left out.
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
    """About SAMPLED evenly spaced numbers of each floating point tensor, on the CPU."""
    real = [tensor for tensor in tensors if tensor.is_floating_point() and not tensor.is_meta]
    flat = [tensor.detach().flatten() for tensor in real]
    some = [each[:: len(each) // SAMPLED + 1].float().cpu() for each in flat]
    return torch.cat(some) if some else torch.empty(0)


def _moved(
    digests: Mapping[str, tuple[bytes, ...]], before: Mapping[str, tuple[bytes, ...]]
) -> dict[str, list[bytes]]:
    """The digests that are not in ``before``, by name; constants have shorter ones, and are left
    out.
    """
    moved = {}
    for name, digests_now in digests.items():
        known = before.get(name, ())
        new = [d for d in digests_now if len(d) == DIGEST_BYTES and d not in known]
        if new:
            moved[name] = new
    return moved


def learn(digests: Iterable[bytes], *, lasting: bool = False) -> None:
    """Count weights with these digests as trained by another process; ``lasting``: as in
    ``Writer``.
    """
    earlier = Writer(lasting=lasting)
    for digest in digests:
        _DIGESTS.setdefault(digest, earlier)


def follow(model: nn.Module, copied: nn.Module) -> None:
    """Count the parameters of a copy that fedlsg made as written by the writers of the model's."""
    for p, twin in zip(model.parameters(), copied.parameters(), strict=True):
        if writer := _PARAMETERS.get(p):
            _PARAMETERS[twin] = writer


def _versions(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The version and the address of each tensor: one of them changes when numbers are written."""
    return {
        name: (0 if p.is_inference() else p._version, p.data_ptr())
        for name, p in parameters.items()
    }
