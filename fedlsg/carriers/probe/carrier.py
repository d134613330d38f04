"""Carriers in the directions of public gradients: the carrier that probes the model (``carriers.probe``)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from fedlsg.carriers.base import Carrier, Rank, of_pairs
from fedlsg.carriers.own import OutRank
from fedlsg.carriers.rounding import EVEN, longest
from fedlsg.forms import CORE, EMBEDDING, FORMS, PRECONDITIONED, TANGENT, Sizes, find_form
from fedlsg.frame import Block, Coordinates
from fedlsg.gradients import trainable
from fedlsg.privacy import Mechanism
from fedlsg.public import Public
from fedlsg.rules import idle_unless
from fedlsg.setting import Setting, check_declared

CarrierRefresh = Annotated[
    int, Setting("Rounds until carriers are probed again.", "rounds", at_least=1, name="refresh_rounds")
]
ProbeInputs = Annotated[
    str,
    Setting("Public inputs of a probe: auto, leaves, pink, tokens, data:, FILE.py:NAME.", name="source"),
]
Probes = Annotated[int, Setting("Number of inputs that a probe pushes through the model.", "examples", at_least=1)]
Power = Annotated[
    float, Setting("S is divided by (predicted spectrum + damping) to this power.", at_least=0, at_most=1)
]
Damping = Annotated[
    float, Setting("Added to the predicted spectrum, whose mean is 1, before the power.", above=0, below=math.inf)
]
ResidualClip = Annotated[
    float,
    Setting(
        "Clip norm of what embeddings leave, as a share of the embeddings'.", above=0, below=math.inf,
        rules=(idle_unless("biased=false"),),
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Probe(Carrier):
    """The top eigenvectors of the second moments of gradients of public inputs, made again every ``refresh`` rounds
    from ``probes`` inputs of ``source``.

    In the form ``core`` carriers are scaled by (lambda / mean + ``damping``)^-``power``, where lambda is the spectrum
    that is predicted, times a constant. In the form ``preconditioned`` both are symmetric: the eigenvectors, scaled so,
    and turned back. In the form ``embedding`` every parameter, flattened (m,), has a basis L (m, r) of anchor
    gradients, r at most ``rank``. An example sends w = L^T g, clipped to C / sqrt(2), and g - L w, clipped to
    ``residual_clip`` times that; ``embedding-only`` sends w alone (biased).
    Raises ValueError for another form, for ``out_rank`` in another form than core, and for a rank of 0 where there is
    one.
    """

    kind: ClassVar[str] = "probe"
    predicts: ClassVar[bool] = True
    form: Any = TANGENT
    rank: Rank = 0
    out_rank: OutRank | None = None
    refresh: CarrierRefresh = 20
    source: ProbeInputs = "auto"
    probes: Probes = 1000
    power: Power = 0.25
    damping: Damping = 0.01
    residual_clip: ResidualClip = 1.0

    def __post_init__(self) -> None:
        check_declared(self)
        object.__setattr__(self, "form", find_form(self.form, self.rank, self.out_rank, tuple(FORMS)))

    def sizes(self, W: Tensor) -> Sizes:
        """With the rank of either side."""
        found: Sizes = self.form.sizes(W, self.rank, self.out_rank)
        return found

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """All parameters, where they are embedded."""
        return tuple(trainable(model)) if self.form.embeds else super().carried(model, classifier=classifier)

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """In the carriers of the last refresh, in the weights' own type."""
        weights = public.weights
        pairs = {name: (L.to(weights[name]), R.to(weights[name])) for name, (L, R) in public.pairs.items()}
        return of_pairs(weights, pairs, self.form)

    def weigh(self, blocks: tuple[Block, ...], mechanism: Mechanism) -> tuple[tuple[Block, ...], float | None]:
        """Rests are clipped to their share: to the same norm after this weight."""
        if self.form is not EMBEDDING:
            return blocks, None
        share, norm = self.residual_clip, mechanism.clip_norm / math.sqrt(2) if mechanism.clips else None
        return tuple(replace(b, weight=b.weight / share) if b.part == "rest" else b for b in blocks), norm

    def needs_one_shape(self, where: Sequence[Coordinates]) -> bool:
        """Where rests, or large scales, are."""
        if self.form is PRECONDITIONED:  # the largest possible one, as L and R are powers of whole moments
            return bool(self.damping**-self.power > EVEN)
        return self.form is EMBEDDING or (
            self.form is CORE
            and any(c.L is not None and c.R is not None and longest(c.L, 0) * longest(c.R, 1) > EVEN**2 for c in where)
        )
