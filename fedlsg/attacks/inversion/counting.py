"""How many numbers were received, and how many are unknown: what no attack can get around without a prior.

The unknowns of a batch are its B d inputs, d numbers each, and B labels where these are not granted. At least as many
equations as unknowns is necessary to know the batch without a prior, and not sufficient: equations repeat each other.
Noise is not counted.
"""

from dataclasses import dataclass

from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import Knowledge, Observation, ThreatModel
from fedlsg.forms import TANGENT


@dataclass(frozen=True, kw_only=True)
class Count:
    """Numbers of one observation: received, sent twice among them, and unknown under a threat model.

    examples: B, the expected batch where the threat model does not grant it.
    """

    received: int
    twice: int
    examples: int
    inputs: int
    labels: int

    @property
    def equations(self) -> int:
        """Numbers of the payload that no other one repeats."""
        return self.received - self.twice

    @property
    def unknowns(self) -> int:
        """Unknown numbers of the batch."""
        return self.inputs + self.labels

    @property
    def enough(self) -> bool:
        """Whether there are as many equations as unknowns: without it no attack can be exact without a prior."""
        return self.equations >= self.unknowns


def count(seen: Observation, prior: Prior, threat: ThreatModel, known: Knowledge) -> Count:
    """Received numbers against unknowns.

    Raises ValueError where ``known`` holds less than the threat model grants, or ``threat`` is for one client and the
    observation is of several.
    """
    if threat.labels == "known" and known.labels is None:
        raise ValueError("the threat model grants labels, and none are there: choose labels='unknown', or give them")
    if threat.examples == "known" and known.examples is None:
        raise ValueError("the threat model grants the number of examples: choose examples='unknown', or give it")
    if threat.view == "client" and len(seen.clients) != 1:
        raise ValueError(f"view='client' is of one payload, this one is the sum of {len(seen.clients)} clients")
    expected = max(1, round(seen.local.expected_batch * len(seen.clients)))
    examples = expected if threat.examples == "unknown" or known.examples is None else known.examples
    return Count(
        received=seen.frame.kept,
        twice=sum(
            _sent_twice(seen, c.name, c.L.shape[1])
            for c in seen.frame.coordinates
            if c.L is not None and c.form is TANGENT
        ),
        examples=examples,
        inputs=examples * prior.size,
        labels=0 if threat.labels == "known" else examples,
    )


def _sent_twice(seen: Observation, parameter: str, rank: int) -> int:
    """r^2 numbers of L^T dW R^T are in dL R^T and in L^T dR; a mask on either leaves the other one alone."""
    return rank**2 if all(b.kept == b.size for b in seen.frame.blocks if b.parameter == parameter) else 0
