"""What a carrier is: how the gradients of a model's weights travel. One class, one file a carrier.

Symbols: W (m, n) public weight now, W_0 the same at the start, L (m, r), R (r, n) carriers, r rank.
Everything here is public: it reads weights, the round and the public seed.

The head of a model is what ``linear-probe`` trains, what LoRA does not adapt, and the group
``classifier`` of rates and clip weights. The output layer is the one layer of it that is never
carried.

Some carriers let the rounding of one example's gradient fill the clip of others. The number of rows
in a pass decides the last bit of every row's gradient. A scale multiplies that bit: scales of 1e6
turn it into 0.7 C (``power=1``, ``damping=1e-6``, an adversary's rows, a network of 256-64-10). It
adds up over rows and grows with the layer. The rest of an embedding has only such bits where
L spans the gradient, and it is clipped by itself. So microbatches of such a frame have one number
of rows (``training.one_pass``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, cast

from torch import Tensor, nn
from torch.linalg import vector_norm

from fedlsg.config import Setting, check_declared
from fedlsg.config.rules import idle_unless
from fedlsg.frame import Block, Coordinates
from fedlsg.frame.forms import CORE, TANGENT, Form, Part, Sizes
from fedlsg.frame.public import Public
from fedlsg.gradients import check_initialized
from fedlsg.gradients.calls.registry import ways_of
from fedlsg.gradients.formulas.layers import can_be_carried
from fedlsg.masks import Mask
from fedlsg.privacy import Mechanism

Rank = Annotated[
    int,
    Setting(
        "Rank r of the carriers.",
        at_least=0,
        rules=(idle_unless("carrier!=dense"),),
    ),
]
"""0 is for carriers that have none: dense gradients, and the form preconditioned."""
PowerSteps = Annotated[int, Setting("Power steps with which carriers follow a matrix.", at_least=1)]

PAYS_BELOW = 0.8
"""A layer is carried where r (m + n) < 0.8 m n, and in the form core where r s < 0.8 m n."""


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """How the gradients of a model's weights travel: what every carrier answers, with the answers
    of most.

    A carrier is a frozen subclass. It owns which weights it carries, their coordinates in a round,
    their sizes, and what of masks, clips and other parts it goes with; ``forms`` own what is sent
    of a weight, and Eq. 3.

    kind: its word in messages.
    rank, power_steps: those of its carriers; 0 and 1 without.
    form: what a carried weight sends.
    source: the public inputs that it probes the model with, in every ``refresh`` rounds.
    residual: false cuts W to rank r before each round.
    scale: LoRA's alpha / rank.
    train: what of the model is trained.
    dense: every trainable parameter is sent as it is, so that masks of single weights and pruning
        mean something.
    adds_up: the sum of clients' values is what the server needs.
    predicts: it says which entries of what is sent will have energy, before anything is sent.
    """

    kind: ClassVar[str] = ""
    dense: ClassVar[bool] = False
    adds_up: ClassVar[bool] = True
    predicts: ClassVar[bool] = False
    rank = 0
    power_steps = 1
    form = cast(Form, TANGENT)
    source = cast(str | None, None)
    refresh = 1
    residual = True
    scale = 1.0
    train = "all"

    def __new__(cls, **given: Any) -> "Carrier":
        if cls is Carrier:
            raise ValueError(
                "fedlsg.Carrier is what all carriers have in common: write "
                "fedlsg.OwnCarriers(make=..., rank=...) for Carrier(kind='own', ...), and one of "
                "the classes of fedlsg.carriers for another kind"
            )
        return super().__new__(cls)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The blocks that a carried weight makes of the step."""
        return self.form.parts

    @property
    def splits(self) -> bool:
        """Whether a carried weight makes two blocks, dL and dR, of the step."""
        return self.parts == TANGENT.parts

    @property
    def refuses_units(self) -> str | None:
        """Why a mask of units means nothing here; None where it does."""
        if self.splits:
            return None
        return (
            "a mask of units freezes rows of dL and columns of dR: it needs low-rank carriers that "
            "send them"
        )

    @property
    def functions(self) -> tuple[Callable[..., object], ...]:
        """The functions of the user that it calls."""
        return ()

    def sizes(self, W: Tensor) -> Sizes:
        """The sizes of the carriers of a weight."""
        return self.form.sizes(W, self.rank, None)

    def values(self, W: Tensor) -> int:
        """Values that an update sends for a carried weight, before a mask: r (m + n) in the form
        tangent, else r s.
        """
        return self.form.values(self.sizes(W))

    def prepare(self, model: nn.Module, head: str, *, classifier: str | None, seed: int) -> None:
        """Change a model to the one that is trained, in place. ``head``: the path of its
        classifier.

        Raises ValueError if the model lacks what is to be trained.
        """

    def carried(self, model: nn.Module, *, classifier: str | None) -> tuple[str, ...]:
        """Names of the weights that travel as carriers; every other trainable parameter stays
        dense.

        Raises ValueError if no layer of the model is large enough.
        """
        return weights_that_pay(model, self, find_output_layer(model, classifier))

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """Coordinates of every trainable parameter in a round. Deterministic, on one kind of
        processor.
        """
        return of_pairs(public.weights, {}, self.form)

    def step_coordinates(self, where: tuple[Coordinates, ...]) -> tuple[Coordinates, ...] | None:
        """The coordinates of a step, where they are not those of what is sent; None where they
        are.
        """
        return None

    def mask(self, blocks: tuple[Block, ...], mask: Mask, public: Public) -> tuple[Block, ...]:
        """The blocks with what a mask keeps of them, beyond what ``apply_mask`` knows."""
        return blocks

    def weigh(
        self, blocks: tuple[Block, ...], mechanism: Mechanism
    ) -> tuple[tuple[Block, ...], float | None]:
        """The blocks with weights of the carrier's own, and ``Frame.part_norm``."""
        return blocks, None

    def needs_one_shape(self, where: Sequence[Coordinates]) -> bool:
        """Whether every microbatch must have one number of rows (see above). Of public values
        alone.
        """
        return False

    def without_residual(self, W: Tensor, seed: int, updates: int, name: str) -> Tensor:
        """W without what its carriers do not span, where ``residual`` is false."""
        return W

    def in_sizes(self) -> "Carrier":
        """A carrier that sends as many values and costs nothing to make."""
        return self


def check_carrier(carrier: Carrier) -> None:
    """Raise ValueError for a value that no declaration accepts, and for a rank of 0."""
    check_declared(carrier)
    if carrier.rank < 1:
        raise ValueError(f"expected rank={carrier.rank} >= 1 for low-rank carriers")


def of_pairs(
    weights: Mapping[str, Tensor], pairs: Mapping[str, tuple[Tensor, Tensor]], form: Form
) -> tuple[Coordinates, ...]:
    """Coordinates of every trainable parameter: carried in the form where it has a pair (L, R)."""
    none = None, None
    return tuple(
        Coordinates(name=name, shape=tuple(W.shape), L=L, R=R, form=form)
        for name, W in weights.items()
        for L, R in [pairs.get(name, none)]
    )


def carried_sizes(
    carrier: Carrier, weights: Mapping[str, Tensor], carried: Sequence[str]
) -> dict[str, Sizes]:
    """The sizes of the carried weights and of their carriers, in model order."""
    return {name: carrier.sizes(W) for name, W in weights.items() if name in carried}


def carried_parameters(
    model: nn.Module, carrier: Carrier, *, classifier: str | None = None
) -> tuple[str, ...]:
    """``Carrier.carried``: for most carriers a trainable weight of a Linear or Conv2d, hooked by
    itself and not shared, not of the output layer, where ``Carrier.values`` < 0.8 m n.

    ``classifier`` names the head, of which the output layer stays dense (``find_output_layer``).
    """
    return carrier.carried(model, classifier=classifier)


def prepare_model(
    model: nn.Module, carrier: Carrier, *, classifier: str | None = None, seed: int
) -> nn.Module:
    """The model that a method trains, changed in place: adapters inserted, what it does not train
    frozen, or W_0 cut.

    ``classifier`` names the head; without it, the last Linear. Deterministic in its arguments.
    Raises ValueError if no layer can be adapted, or the model lacks what is to be trained: a
    classifier, bias terms.
    """
    check_initialized(model)
    carrier.prepare(model, find_classifier(model, classifier), classifier=classifier, seed=seed)
    return model


def weights_that_pay(model: nn.Module, carrier: Carrier, excluded: str) -> tuple[str, ...]:
    """The weights that may travel as carriers and are smaller so; none of the module at the path
    ``excluded``.
    """
    ways = ways_of(model)
    shared = {module._parameters[own] for places in ways.uses.values() for module, own in places}
    modules = {name: module for name, module in model.named_modules() if can_be_carried(module)}
    candidates = {
        f"{name}.weight" if name else "weight": W
        for name, module in modules.items()
        if (W := module.get_parameter("weight")).requires_grad
        and f"{name}.weight" not in ways.others
        and W not in shared
        and not (name == excluded or name.startswith(excluded + "."))
    }
    names = tuple(name for name, W in candidates.items() if pays(W, carrier))
    if not names:
        raise ValueError(_nothing_carried(type(model).__name__, carrier, [*candidates.values()]))
    return names


def pays(W: Tensor, carrier: Carrier) -> bool:
    """Whether a carried weight sends clearly fewer values than it has, or sends them all
    preconditioned.
    """
    return carrier.form.pays(carrier.sizes(W), PAYS_BELOW)


def ranks_that_pay(weights: Sequence[Tensor], carrier: Carrier) -> dict[int, int]:
    """How many of the weights are carried at the largest rank that carries one, and at the largest
    that carries them all; each rank that there is, from 1 to below the carrier's.
    """
    found: dict[int, int] = {}
    for rank in range(carrier.rank - 1, 0, -1):
        smaller = replace(cast(Any, carrier), rank=rank)
        count = sum(pays(W, smaller) for W in weights)
        if count and (not found or count == len(weights)):
            found[rank] = count
        if count == len(weights):
            break
    return found


def _nothing_carried(model: str, carrier: Carrier, candidates: Sequence[Tensor]) -> str:
    """Why no layer is carried, and what to do. ``candidates``: weights that could be carried at a
    smaller rank.
    """
    if not carrier.rank:
        return f"{model} has no Linear or Conv2d layer before the classifier to precondition"
    core = carrier.form is CORE
    out_rank = f", out_rank={getattr(carrier, 'out_rank', None) or carrier.rank}" if core else ""
    given = f"rank={carrier.rank}{out_rank}"
    if not candidates:
        return (
            f"{given} carries no layer of {model}: it has no Linear or Conv2d layer before the "
            "classifier; choose another model, or a dense method such as dpsgd"
        )
    ranks = ranks_that_pay(candidates, carrier)
    ways = [
        f"rank={rank}, which carries {count} of {len(candidates)}" for rank, count in ranks.items()
    ]
    ways.append("a dense method such as dpsgd")
    return (
        f"{given} carries no layer of {model}: {'r s' if core else 'r (m + n)'} < {PAYS_BELOW} m n "
        f"holds for none of its {len(candidates)} Linear and Conv2d layers before the classifier; "
        f"give {', or '.join(ways)}"
    )


def find_classifier(model: nn.Module, classifier: str | None = None) -> str:
    """Path of the head, which may have several layers: the module that is named, else the last
    Linear, else "".

    Raises ValueError for a name that is not a module of the model.
    """
    if classifier is None:
        return _last_linear(model)
    if not any(name == classifier for name, _ in model.named_modules()):
        raise ValueError(f"{classifier=} is no module of {type(model).__name__}")
    return classifier


def find_output_layer(model: nn.Module, classifier: str | None = None) -> str:
    """Path of the layer that makes the outputs: the last Linear of the head, or the head itself if
    it has none.

    It is never carried: "all fully connected and attention layers except the classification layer"
    are (Ito et al. 2023, sec. 4). In RoBERTa's head ``dense`` is carried and ``out_proj`` is not.
    Raises ValueError for a ``classifier`` that is not a module of the model.
    """
    head = find_classifier(model, classifier)
    last = _last_linear(model.get_submodule(head))
    return f"{head}.{last}" if head and last else head or last


def _last_linear(model: nn.Module) -> str:
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else ""


MAX_EVEN_SCALE = 4.0
"""Largest scale on either side of a weight at which microbatches may differ in their number of
rows.
"""


def longest(matrix: Tensor, dim: int) -> float:
    """The norm of the longest column (``dim`` 0) or row (1); they are orthogonal."""
    return float(vector_norm(matrix.float(), dim=dim).max())
