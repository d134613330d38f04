"""How many numbers were received, and how many are unknown: what no attack can get around without a prior.

Symbols: B examples, d numbers of one input, r rank; a layer has p numbers at its input and q at its output an example.
The unknowns of a batch are its B d inputs and B labels where these are not granted. A layer attacked by itself has B p
inputs and B q gradients as unknowns; its equations are products of both, so that a linear layer that sees each example
once leaves B^2 of them open (G A^-1 and A X give the same gradient). At least as many equations as unknowns is
necessary to know the batch without a prior, and not sufficient: equations repeat each other. Noise is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import Knowledge, Observation, ThreatModel


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """One layer: numbers received, how many of them were sent twice, and what is unknown there.

    dense: what a dense method would have sent. unknowns: B (p + q), None where no input could be run through.
    """

    path: str
    dense: int
    received: int
    twice: int
    unknowns: int | None

    @property
    def equations(self) -> int:
        """Numbers received that no other received number repeats."""
        return self.received - self.twice


@dataclass(frozen=True, kw_only=True)
class Count:
    """All of one observation under a threat model: inputs and labels are the unknown numbers of the whole batch.

    guessed: whether B is the expected batch, because the threat model does not grant it.
    """

    layers: tuple[LayerCount, ...]
    examples: int
    guessed: bool
    inputs: int
    labels: int

    @property
    def received(self) -> int:
        """Numbers of the payload."""
        return sum(layer.received for layer in self.layers)

    @property
    def equations(self) -> int:
        """Numbers of the payload that no other one repeats."""
        return sum(layer.equations for layer in self.layers)

    @property
    def unknowns(self) -> int:
        """Unknown numbers of the batch."""
        return self.inputs + self.labels

    @property
    def enough(self) -> bool:
        """Whether there are as many equations as unknowns: without it no attack can be exact without a prior."""
        return self.equations >= self.unknowns


def count(seen: Observation, prior: Prior, threat: ThreatModel, known: Knowledge) -> Count:
    """Received numbers against unknowns, by layer and in all.

    Raises ValueError where ``known`` holds less than the threat model grants, or ``threat`` is for one client and the
    observation is of several.
    """
    if threat.labels == "known" and known.labels is None:
        raise ValueError("the threat model grants labels, and none are there: choose labels='unknown', or give them")
    if threat.examples == "known" and known.examples is None:
        raise ValueError("the threat model grants the number of examples: choose examples='unknown', or give it")
    if threat.view == "client" and len(seen.clients) != 1:
        raise ValueError(f"view='client' is of one payload, this one is the sum of {len(seen.clients)} clients")
    guessed = threat.examples == "unknown" or known.examples is None
    expected = max(1, round(seen.local.expected_batch * len(seen.clients)))
    examples = expected if guessed or known.examples is None else known.examples
    sizes = _activations(seen.model, prior)
    paths = dict.fromkeys(c.name.rpartition(".")[0] for c in seen.frame.coordinates)
    return Count(
        layers=tuple(_layer(seen, path, examples, sizes.get(path)) for path in paths),
        examples=examples,
        guessed=guessed,
        inputs=examples * prior.size,
        labels=0 if threat.labels == "known" else examples,
    )


def _layer(seen: Observation, path: str, examples: int, size: int | None) -> LayerCount:
    own = [b for b in seen.frame.blocks if b.parameter.rpartition(".")[0] == path]
    dense = {c.name: torch.Size(c.shape).numel() for c in seen.frame.coordinates}
    twice = sum(
        c.L.shape[1] ** 2
        for c in seen.frame.coordinates
        if c.L is not None
        and c.name.rpartition(".")[0] == path
        and all(b.kept == b.size for b in own if b.parameter == c.name)
    )
    return LayerCount(
        path=path,
        dense=sum(dense[name] for name in {b.parameter for b in own}),
        received=sum(b.kept for b in own),
        twice=twice,
        unknowns=None if size is None else examples * size,
    )


def _activations(model: nn.Module, prior: Prior) -> dict[str, int]:
    """Numbers at input and output of every layer for one example, counted in a run of the prior's middle."""
    sizes: dict[str, int] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            tensors = [t for t in (*inputs, output) if isinstance(t, Tensor)]
            sizes[path] = sum(t.numel() for t in tensors)

        return hook

    handles = [m.register_forward_hook(note(path)) for path, m in model.named_modules()]
    try:
        with torch.no_grad():
            model(prior.expected(1).to(next(model.parameters())))
    finally:
        for handle in handles:
            handle.remove()
    return sizes
