"""Carrier, the base class of the ways in which gradients of weights are sent; and which weights are
carried.

Symbols: W (m, n) public weight now, W_0 the same at the start, L (m, r), R (r, n) carriers, r rank.
Everything here is public: it reads weights, the round and the public seed.

The head of a model is what ``linear-probe`` trains, what LoRA does not adapt, and the group
``classifier`` of rates and clip weights. The output layer is the one layer of it that is never
carried.

One shape: the number of rows in a pass changes the last bits of every row's gradient, and so other
rows show in them. Carriers with large scales multiply these bits: scales of 1e6 turn them into 0.7
C (measured: ``power=1``, ``damping=1e-6``, an adversary's rows, a network of 256-64-10). The rest
of an embedding has nothing but such bits where L spans the gradient, and has a clip of its own.
For such carriers every microbatch has the same number of rows (``training.one_pass``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, cast

from torch import Tensor, nn

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
"""0 is for carriers without a rank: dense gradients, and the form preconditioned."""
PowerSteps = Annotated[int, Setting("Power steps with which carriers follow a matrix.", at_least=1)]

PAYS_BELOW = 0.8
"""A layer is carried where r (m + n) < 0.8 m n, and in the form core where r s < 0.8 m n."""


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """How the gradients of a model's weights are sent. Defaults are those of most carriers.

    Each carrier is a frozen subclass. It decides which weights are carried, their coordinates in a
    round, their sizes, and the masks and clips that it goes with. A ``Form`` decides what is sent
    of a carried weight, and how it is lifted (Eq. 3).

    kind: the carrier's word in messages.
    dense: whether every trainable parameter is sent as it is, so that masks of single weights and
        pruning are possible.
    adds_up: whether the server needs no more than the sum of clients' values.
    predicts: whether the energy of what is sent is predicted before anything is sent.
    rank: r; 0 without a rank.
    power_steps: of the power method that finds the carriers.
    form: what a carried weight sends.
    source: the public inputs that the model is probed with; None without a probe.
    refresh: rounds from one probe to the next.
    residual: whether W keeps what its carriers do not span; false cuts W to rank r before each
        round.
    scale: LoRA's alpha / rank; 1 otherwise.
    train: which part of the model is trained.
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
        """Why a mask of units cannot be used with this carrier; None if it can."""
        if self.splits:
            return None
        return (
            "a mask of units freezes rows of dL and columns of dR: it needs low-rank carriers that "
            "send them"
        )

    @property
    def functions(self) -> tuple[Callable[..., object], ...]:
        """The user's functions that the carrier calls."""
        return ()

    def sizes(self, W: Tensor) -> Sizes:
        """The sizes of the carriers of a weight."""
        return self.form.sizes(W, self.rank, None)

    def values(self, W: Tensor) -> int:
        """Values that an update sends for a carried weight, before a mask.

        r (m + n) in the form tangent; ``Form.values`` has the others.
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
        """The coordinates of a step; None if they are those of what is sent."""
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
        """Whether every microbatch must have one number of rows: see "One shape" in the header.

        It is decided by public values alone.
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
    coordinates = []
    for name, W in weights.items():
        L, R = pairs.get(name, (None, None))
        coordinates.append(Coordinates(name=name, shape=tuple(W.shape), L=L, R=R, form=form))
    return tuple(coordinates)


def carried_sizes(
    carrier: Carrier, weights: Mapping[str, Tensor], carried: Sequence[str]
) -> dict[str, Sizes]:
    """The sizes of the carried weights and of their carriers, in model order."""
    return {name: carrier.sizes(W) for name, W in weights.items() if name in carried}


def carried_parameters(
    model: nn.Module, carrier: Carrier, *, classifier: str | None = None
) -> tuple[str, ...]:
    """Names of the weights that a carrier carries: ``Carrier.carried``.

    For most carriers they are the trainable weights of Linear and Conv2d layers that are hooked by
    themselves, are not shared, and have ``Carrier.values`` < 0.8 m n. ``classifier`` names the
    head, of which the output layer stays dense (``find_output_layer``).
    """
    return carrier.carried(model, classifier=classifier)


def prepare_model(
    model: nn.Module, carrier: Carrier, *, classifier: str | None = None, seed: int
) -> nn.Module:
    """The model that a method trains, changed in place.

    A carrier may insert adapters, freeze parameters, or cut W_0 to rank r.
    ``classifier`` names the head; without it, the last Linear. Deterministic in its arguments.
    Raises ValueError if no layer can be adapted, or the model lacks what is to be trained: a
    classifier, bias terms.
    """
    check_initialized(model)
    carrier.prepare(model, find_classifier(model, classifier), classifier=classifier, seed=seed)
    return model


def weights_that_pay(model: nn.Module, carrier: Carrier, excluded: str) -> tuple[str, ...]:
    """The weights that can be carried and then send fewer values, outside of the module at the path
    ``excluded``.

    Raises ValueError if there is none.
    """
    ways = ways_of(model)
    shared = {module._parameters[name] for places in ways.uses.values() for module, name in places}
    candidates = {}
    for path, module in model.named_modules():
        if path == excluded or path.startswith(excluded + ".") or not can_be_carried(module):
            continue
        W = module.get_parameter("weight")
        if W.requires_grad and f"{path}.weight" not in ways.others and W not in shared:
            candidates[f"{path}.weight" if path else "weight"] = W
    names = tuple(name for name, W in candidates.items() if pays(W, carrier))
    if not names:
        raise ValueError(_nothing_carried(type(model).__name__, carrier, [*candidates.values()]))
    return names


def pays(W: Tensor, carrier: Carrier) -> bool:
    """Whether a carried weight sends clearly fewer values than it has, or all of them in the form
    preconditioned.
    """
    return carrier.form.pays(carrier.sizes(W), PAYS_BELOW)


def ranks_that_pay(weights: Sequence[Tensor], carrier: Carrier) -> dict[int, int]:
    """Numbers of carried weights by rank, for at most two ranks below the carrier's.

    They are the largest rank at which a weight is carried, and the largest at which all are.
    """
    counts: dict[int, int] = {}
    for rank in range(carrier.rank - 1, 0, -1):
        smaller = replace(cast(Any, carrier), rank=rank)
        count = sum(pays(W, smaller) for W in weights)
        if count and (not counts or count == len(weights)):
            counts[rank] = count
        if count == len(weights):
            break
    return counts


def _nothing_carried(model: str, carrier: Carrier, candidates: Sequence[Tensor]) -> str:
    """Why no layer is carried, and what to do. ``candidates``: weights that could be carried at a
    smaller rank.
    """
    if not carrier.rank:
        return f"{model} has no Linear or Conv2d layer before the classifier to precondition"
    core = carrier.form is CORE
    out_rank = f", out_rank={getattr(carrier, 'out_rank', None) or carrier.rank}" if core else ""
    setting = f"rank={carrier.rank}{out_rank}"
    if not candidates:
        return (
            f"{setting} carries no layer of {model}: it has no Linear or Conv2d layer before the "
            "classifier; choose another model, or a dense method such as dpsgd"
        )
    ranks = ranks_that_pay(candidates, carrier)
    advice = [
        f"rank={rank}, which carries {count} of {len(candidates)}" for rank, count in ranks.items()
    ]
    advice.append("a dense method such as dpsgd")
    return (
        f"{setting} carries no layer of {model}: {'r s' if core else 'r (m + n)'} < {PAYS_BELOW} "
        f"m n holds for none of its {len(candidates)} Linear and Conv2d layers before the "
        f"classifier; give {', or '.join(advice)}"
    )


def find_classifier(model: nn.Module, classifier: str | None = None) -> str:
    """Path of the head, which may have several layers: ``classifier``, else the last Linear, else
    "".

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
    return ".".join(path for path in (head, last) if path)


def _last_linear(model: nn.Module) -> str:
    """Path of the last Linear of a model; "" for the model itself, or without one."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else ""
