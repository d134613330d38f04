"""Models of a run's settings on random halves of the training set, for membership attacks (Carlini
et al. 2022).

Model 0 is the target: it has each example with probability 1/2. The others are shadows in pairs, a
random half and its complement, so that every example is in half of the shadows. Clients, wire,
ledger and server are those of a run, in a folder that is deleted; the attacks know everything about
the training except which examples the target has.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from fedlsg.attacks.membership.answers import Public, scaled_confidence
from fedlsg.randomness import public_generator
from fedlsg.simulations.inspection import run_in_scratch
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.report.terminals.progress import Tick
from fedlsg.simulations.server.divergence import refuse_diverged
from fedlsg.simulations.server.evaluate import evaluate, scores_of
from fedlsg.simulations.workloads import to_device
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.strategies.own_loop.row_checks import model_outputs

MIN_SHADOWS = 6
"""Fewest shadows: without the target in turn and its pair, two shadows still have each example and
two do not.
"""
CANDIDATES = 10_000
PUBLIC = 1000
"""Most public rows, of the test split, that attacks compare candidates with."""
BATCH, TRIED = 500, 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """What the attacks read: phi of each example, see ``confidences``, and which model has which
    example.

    rows: the candidates in the training split.
    confidence: phi of each candidate under each model, target first.
    inside: whether the model was trained with it.
    accuracy: of each model on the test split, in 0..1; None where targets are no classes.
    public: the same of rows of the test split; None without a test split.
    """

    rows: Int64[np.ndarray, " candidates"]
    confidence: Float[np.ndarray, "models candidates"]
    inside: Bool[np.ndarray, "models candidates"]
    accuracy: tuple[float, ...] | None
    public: "PublicRows | None" = None


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicRows:
    """phi of rows of the test split, which no model has: under each model, target first, and under
    the public model before training. features: see ``Public``.
    """

    confidence: Float[np.ndarray, "models public"]
    first: Float[np.ndarray, " public"]
    first_of_candidates: Float[np.ndarray, " candidates"]
    features: Float[np.ndarray, "public features"]
    features_of_candidates: Float[np.ndarray, "candidates features"]

    def against(self, target: int, shadows: list[int]) -> Public:
        """What an attack on one model reads of them, with others as shadows."""
        return Public(
            target=self.confidence[target],
            shadows=self.confidence[shadows],
            first=self.first,
            first_of_candidates=self.first_of_candidates,
            features=self.features,
            features_of_candidates=self.features_of_candidates,
        )


def train_all(plan: Plan, *, shadows: int, seed: int, tick: Tick) -> Trained:
    """Train the target and its shadows, and query each for every candidate (all examples, or 10,000
    at random).

    ``seed`` repeats all draws and the noise. The initial weights, carriers and clients of all
    models are those of ``plan``: they come from its public seed, which the attacker knows.
    Raises ValueError for too few shadows, a client that is left without an example, or a model that
    diverged.
    """
    check_clients(plan)
    total = count_units(plan)
    inside = halves(shadows, total, seed)
    draw = torch.randperm(total, generator=public_generator(seed, "membership", "candidates"))
    rows = draw[:CANDIDATES].sort().values
    if plan.unit.single:
        rows = plan.workload.train.order(rows)
    known = public_rows(plan, seed)
    answers, accuracy, outside = [], [], []
    for number, members in enumerate(inside):

        def on_round(done: int, number: int = number) -> None:
            share = (number + done / plan.schedule.rounds) / len(inside)
            tick(share, f"model {number + 1} of {len(inside)}, round {done}")

        with trained(on_half(plan, members), seed, number, on_round) as model:
            answers.append(confidences_of(model, plan, rows))
            outside.append(
                confidences(model, plan.workload, plan.workload.test, known, plan.device)
            )
            accuracy.append(accuracy_of(model, plan.workload, plan.device))
        if not np.isfinite(answers[-1]).all():
            raise ValueError(
                f"model {number + 1} of {len(inside)} diverged: its outputs are not finite; train "
                "slower"
            )
    order = rows.numpy()
    return Trained(
        rows=order,
        confidence=np.stack(answers),
        inside=inside[:, order].numpy(),
        accuracy=None if plan.workload.num_classes is None else tuple(accuracy),
        public=before_training(plan, rows, known, np.stack(outside)) if len(known) else None,
    )


def public_rows(plan: Plan, seed: int) -> Int64[Tensor, " public"]:
    """Rows of the test split, ``PUBLIC`` at most, at random."""
    generator = public_generator(seed, "membership", "public")
    drawn = torch.randperm(len(plan.workload.test), generator=generator)[:PUBLIC]
    return plan.workload.test.order(drawn)


def before_training(
    plan: Plan,
    candidates: Int64[Tensor, " candidates"],
    public: Int64[Tensor, " public"],
    confidence: Float[np.ndarray, "models public"],
) -> PublicRows:
    """What the public model before private training says of candidates and of public rows."""
    test = plan.workload.test
    with plan.initial.server().evaluated() as model:
        return PublicRows(
            confidence=confidence,
            first=confidences(model, plan.workload, test, public, plan.device),
            first_of_candidates=confidences_of(model, plan, candidates),
            features=features(model, plan.workload, test, public, plan.device),
            features_of_candidates=mean_of(candidates, plan, partial(features, model)),
        )


def halves(shadows: int, examples: int, seed: int) -> Bool[Tensor, "models examples"]:
    """Which model has which example, the target first. Shadows 1 and 2, 3 and 4, ... complement
    each other.

    Guarantee: a model has an example with probability 1/2. Draws of different models are
    independent, except within a pair. Raises ValueError for an odd number of shadows, or too few.
    """
    check_shadows(shadows)
    generator = public_generator(seed, "membership", "coins")
    included = torch.rand(1 + shadows // 2, examples, generator=generator) < 0.5
    pairs = torch.stack([included[1:], ~included[1:]], dim=1).flatten(0, 1)
    return torch.cat([included[:1], pairs])


def check_shadows(shadows: int) -> None:
    """Raise ValueError for an odd number of shadows, or too few."""
    if shadows < MIN_SHADOWS or shadows % 2:
        raise ValueError(
            f"expected --shadows {shadows} even and at least {MIN_SHADOWS}: a Gaussian is fitted "
            "for each example to the shadows with it and to those without"
        )


def pair_of(model: int) -> int | None:
    """The shadow that has exactly what ``model`` leaves out; None for the target."""
    return None if model == 0 else model + 1 if model % 2 else model - 1


def on_half(plan: Plan, members: Bool[Tensor, " examples"]) -> Plan:
    """The plan on the examples of one half: same rate and noise, and the public divisor of half the
    data.

    At client level on half of the clients, at the level of persons on half of these.
    """
    if plan.unit.whole:
        return without_clients(plan, members)
    inside = members if plan.person is None else members[plan.person]
    parts = [part[inside[part]] for part in plan.parts]
    if any(not len(part) for part in parts):
        raise ValueError(
            "a client has no example in its half of the training set: take fewer clients"
        )
    half = replace(
        plan,
        parts=parts,
        local=replace(plan.local, expected_batch=plan.local.expected_batch / 2),
    )
    terms = [replace(t, num_examples=half.rows.size_of(k)) for k, t in enumerate(plan.terms)]
    return replace(half, terms=tuple(terms))


@contextmanager
def trained(
    plan: Plan, seed: int, number: int, on_round: Callable[[int], None]
) -> Iterator[nn.Module]:
    """A model trained by the local engine, as it is evaluated."""
    # on the public seed alone all would draw the same noise
    plan = replace(plan, stream=("membership", seed, number))
    with run_in_scratch(plan, lambda row: on_round(row.round)) as (directory, summary):
        refuse_diverged(summary)
        state = plan.initial.server()
        state.load_state_dict(directory.load_checkpoint()["server"])
    with state.evaluated() as model:
        yield model


def confidences_of(
    model: nn.Module, plan: Plan, candidates: Tensor
) -> Float[np.ndarray, " candidates"]:
    """phi of each candidate: of an example, or the mean over the examples of a client or person."""
    return mean_of(candidates, plan, partial(confidences, model))


def mean_of(
    candidates: Tensor, plan: Plan, of_rows: Callable[..., np.ndarray]
) -> Float[np.ndarray, "candidates *shape"]:
    """What ``of_rows(workload, split, rows, device)`` gives for each candidate: for its example, or
    the mean over the examples of a client or person.
    """
    w, device = plan.workload, plan.device
    if plan.person is not None:
        order, counts = plan.person.argsort(stable=True), plan.person.bincount()
        of_person = order.split(counts.tolist())
        parts = [of_person[int(candidate)] for candidate in candidates]
    elif plan.unit.whole:
        parts = [plan.parts[int(client)] for client in candidates]
    else:
        return of_rows(w, w.train, candidates, device)
    return np.stack([of_rows(w, w.train, part, device).mean(0) for part in parts])


@torch.no_grad()
def confidences(
    model: nn.Module, workload: LoadedWorkload, split: Split, rows: Tensor, device: str
) -> Float[np.ndarray, " rows"]:
    """phi of each row, from one query without augmentation, in evaluation mode; higher for what the
    model knows better.

    log(p / (1 - p)) of the true class where the loss is cross-entropy, times a constant; else minus
    the loss.
    """
    training, parts = model.training, []
    model.eval()
    classes = is_cross_entropy(workload)
    for batch in rows.split(BATCH):
        inputs, targets = split.batch(batch)
        outputs = model_outputs(model, to_device(inputs, device))
        if classes:
            parts.append(scaled_confidence(scores_of(outputs).double().cpu(), targets))
        else:
            parts.append(-workload.loss(outputs, targets.to(device)).double().cpu())
    model.train(training)
    return torch.cat(parts).numpy()


@torch.no_grad()
def features(
    model: nn.Module, workload: LoadedWorkload, split: Split, rows: Tensor, device: str
) -> Float[np.ndarray, "rows features"]:
    """What a regression on public rows reads of a row: its class, and the outputs of a public
    model; phi alone where targets are no classes.
    """
    if workload.num_classes is None:
        return confidences(model, workload, split, rows, device)[:, np.newaxis]
    parts, training = [], model.training
    model.eval()
    for batch in rows.split(BATCH):
        inputs, targets = split.batch(batch)
        outputs = scores_of(model_outputs(model, to_device(inputs, device))).double().cpu()
        classes = functional.one_hot(targets, workload.num_classes).double()
        parts.append(torch.cat([classes, outputs], 1))
    model.train(training)
    return torch.cat(parts).numpy()


def accuracy_of(model: nn.Module, workload: LoadedWorkload, device: str) -> float:
    """Share of the test split that the model gets right; NaN where targets are no classes."""
    score = evaluate(
        model,
        workload.test,
        loss=workload.loss,
        classes=workload.num_classes is not None,
        device=device,
    )
    return math.nan if score.accuracy is None else score.accuracy


def is_cross_entropy(workload: LoadedWorkload) -> bool:
    """Whether the loss is cross-entropy of logits (B, classes), times a constant."""
    if workload.num_classes is None:
        return False
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(TRIED, workload.num_classes, generator=generator, dtype=torch.float64)
    labels = torch.arange(TRIED) % workload.num_classes
    try:
        ratio = workload.loss(logits, labels) / functional.cross_entropy(
            logits, labels, reduction="none"
        )
        return bool((ratio > 0).all()) and torch.allclose(ratio, ratio[0].expand(TRIED), rtol=1e-5)
    except Exception:  # of other outputs: a loss of a user's own may raise anything
        return False


def count_units(plan: Plan) -> int:
    """How many units there are: training examples, persons, or clients."""
    if plan.person is not None:
        return int(plan.person.max()) + 1
    return len(plan.workload.train) if not plan.unit.whole else len(plan.parts)


def check_clients(plan: Plan) -> None:
    """Raise ValueError for client-level settings whose shadows cannot leave clients out."""
    if plan.unit.whole and not plan.unit.at_server:
        raise ValueError(
            "--membership at client level leaves out half of the clients, and "
            f"trust={plan.settings.trust} fixes who takes part: attack a run with trust=server"
        )


def without_clients(plan: Plan, members: Bool[Tensor, " clients"]) -> Plan:
    """The plan without the other clients: the same rate, noise and divisor, which are public
    constants.
    """
    kept = members.nonzero().squeeze(1).tolist()
    return replace(
        plan,
        parts=[plan.parts[client] for client in kept],
        terms=tuple(plan.terms[client] for client in kept),
    )
