"""Weights that private steps and runs of this process have written: a step that starts from them
must count their epsilon, too.

The parameters that a step trains are recognised, whatever was done to them in place, as soon as it
has changed one of them. So are equal numbers elsewhere: copies, files that were loaded, averages
that a step made. Numbers are compared by digests of all of them (``weight_digest``), which are kept
of every step: a method that changes one number of a thousand is noticed, and numbers that did not
change belong to nobody. Copies in half precision are recognised by digests of some rounded numbers.
Numbers that were changed otherwise, outside of the trained model, are not recognised, nor those of
another process, unless its digests are added (``learn``).
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from fedlsg.privacy.ledger import Ledger
from fedlsg.privacy.limits import budgets_now
from fedlsg.privacy.weight_digest import DIGEST_BYTES, digests_of, rounded_digests, samples_of

MAX_NOTED_PARAMETERS = 3
"""Most changed parameters whose digests are kept after each step."""
MAX_DIGESTS = 100_000
"""Most digests that are kept; the oldest is removed first."""

_PARAMETERS = WeakIdKeyDictionary()
"""The parameters that were trained, each with its ``Writer``."""
_DIGESTS: "dict[bytes, Writer]" = {}
"""Digests of what was written, the oldest first."""


def spread(names: list[str], most: int) -> list[str]:
    """At most ``most`` of the names, evenly spaced."""
    return names[:: (len(names) - 1) // most + 1] if names else []


class Writer:
    """One private step, or run, that writes weights.

    ledger: a file that its owner keeps; None if the ledger ends with the step or run.
    fresh_data: whether its owner declares that its data are other than those of the weights with
        which it starts.
    """

    def __init__(self, *, ledger: Ledger | None = None, fresh_data: bool = False) -> None:
        self.ledger, self.fresh_data = ledger, fresh_data
        self.path = "" if ledger is None else str(ledger.path.resolve())
        """The path of the ledger; empty without one that lasts."""
        self.head = ""
        """The hash of the last line that the ledger had when weights were written last."""
        self.start: dict[str, tuple[bytes, ...]] = {}
        """Digests of the trained weights before the first step."""
        self.changed: dict[str, None] = {}
        """Names of trained parameters that other code changed between two steps."""
        self._most = MAX_DIGESTS
        self._before: dict[str, tuple[bytes, ...]] = {}
        self._before_rounded: dict[str, tuple[bytes, ...]] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._digests: dict[str, tuple[bytes, ...]] = {}
        """Digests of the weights that it wrote last."""
        self._rounded: dict[str, tuple[bytes, ...]] = {}
        """Digests of these weights in half precision."""
        self._sampled = torch.empty(0)
        """Some numbers of these weights."""

    def begin(self, trained: Mapping[str, Tensor], most: int = MAX_DIGESTS) -> None:
        """Remember the digests of the tensors before they are trained.

        ``most``: changed tensors whose digests are kept after each step.
        """
        self._before, self._most = digests_of(trained), most
        self._before_rounded = rounded_digests(trained, samples_of(trained))
        self.start = self._before

    def check(self, model: nn.Module, way: str) -> None:
        """Raise ValueError for weights of another writer, whose steps this one would not count.

        It counts those whose charges are in its own ledger. On a node that its owner limits, each
        ledger is of other data, so that of another file is accepted. ``way``: what to do, for the
        message.
        """
        parameters = dict(model.named_parameters())
        if self._wrote(parameters):
            return
        tensors = parameters | dict(model.named_buffers())  # weights may be frozen as buffers
        digests = digests_of(tensors)
        self._compare(digests)
        if self.fresh_data:
            return
        rounded = rounded_digests(tensors, samples_of(tensors))
        for name, tensor in tensors.items():
            known = map(_DIGESTS.get, (*digests[name], *rounded.get(name, ())))
            for writer in {_PARAMETERS.get(tensor), *known} - {None, self}:
                if not self._counts(writer):
                    raise ValueError(
                        f"{name} was trained by an earlier private step or run"
                        f"{self._words_on(writer)}, which this one would not count: {way}; if the "
                        "data are others, say so with fresh_data=True; or build a new model"
                    )

    def _counts(self, writer: "Writer") -> bool:
        """Whether this writer's ledger has the charges of another one, or need not have them."""
        if self.ledger is None or not writer.path:
            return False
        on_node = bool(budgets_now()) and writer.path != self.path
        return on_node or self.ledger.has(writer.head)

    def _words_on(self, writer: "Writer") -> str:
        """Which ledger has the charges of a writer, for a message."""
        if not writer.path:
            return ""
        lost = writer.path == self.path
        return f" with ledger={writer.path!r}" + ", which has lost their entries" * lost

    def changes(self, trained: Mapping[str, Tensor], received: Mapping[str, Tensor]) -> list[str]:
        """Names of trained parameters that other code has changed.

        Before the first step since they were ``received``; then between steps and after the last.
        """
        now = digests_of(trained)
        self._compare(now)
        began = now | self.start
        both = trained.keys() & received.keys()
        sent = digests_of({name: received[name].to(trained[name].dtype) for name in both})
        others = {name: None for name in trained if sent.get(name, ()) not in ((), began[name])}
        return [*(others | self.changed)]

    def look(self, parameters: Mapping[str, Tensor]) -> None:
        """Note which trained parameters other code has changed until now."""
        self._compare(digests_of(parameters))

    def _compare(self, digests: Mapping[str, tuple[bytes, ...]]) -> None:
        """Note parameters whose digests are not those of the last step; before it, the start."""
        if self._digests:
            now = {name: digests.get(name) for name in self._digests}
            self.changed |= {n: None for n, each in self._digests.items() if now[n] != each}
        else:
            self.start = {name: digests.get(name, ()) for name in self._before}

    def _wrote(self, parameters: Mapping[str, Tensor]) -> bool:
        """Whether these are the weights that it wrote last.

        Versions and some numbers are compared: writing through .data or numpy gives no new version.
        """
        if not self._versions or self._versions != _versions(parameters):
            return False
        samples = samples_of({name: parameters[name] for name in self._digests})
        return torch.equal(_together(samples), self._sampled)

    @property
    def moved(self) -> list[bytes]:
        """The digests that are kept of the weights that it wrote last."""
        kinds = (
            _moved(self._digests, self._before),
            _moved(self._rounded, self._before_rounded),
        )
        return [d for moved in kinds for name in spread([*moved], self._most) for d in moved[name]]

    def note(self, written: Mapping[str, Tensor]) -> None:
        """Remember these tensors as written by this writer, if one of the trained ones has changed.

        Tensors that ``begin`` did not get are left out.
        """
        self._versions = _versions(written)
        trained = {n: t for n, t in written.items() if n in self._before}
        self._digests, samples = digests_of(trained), samples_of(trained)
        self._sampled, self._rounded = _together(samples), rounded_digests(trained, samples)
        if all(digests == self._before[name] for name, digests in self._digests.items()):
            return
        if self.ledger is not None:
            self.head = self.ledger.snapshot()[1]
        for name in self._digests:
            tensor = written[name]
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                _PARAMETERS[tensor] = self
        for digest in self.moved:
            _DIGESTS.pop(digest, None)  # it becomes the newest
            _DIGESTS[digest] = self
        while len(_DIGESTS) > MAX_DIGESTS:
            del _DIGESTS[next(iter(_DIGESTS))]


def _together(samples: Mapping[str, Tensor]) -> Tensor:
    """All samples as one vector."""
    return torch.cat([*samples.values()]) if samples else torch.empty(0)


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


def learn(digests: Iterable[bytes], *, path: str = "", head: str = "") -> None:
    """Count weights with these digests as trained by another process.

    path, head: as in ``Writer``.
    """
    earlier = Writer()
    earlier.path, earlier.head = path, head
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
