"""Shadow models for membership attacks (Carlini et al. 2022).

Each has the settings of a run and a random half of its training set. Model 0 is the target: it has
each example with probability 1/2. The others are shadows in pairs, a random half and its
complement, so that every example is in half of the shadows. Clients, wire, ledger and server are
those of a run, in a folder that is deleted. The attacks know everything about the training except
which examples the target has.
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

from fedlsg.attacks.membership.answers import PublicAnswers, scaled_confidence
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
"""Shadows at least. If a shadow is the target in turn, it and its pair are left out; of the others
two still have each example, and two do not.
"""
MAX_CANDIDATES = 10_000
"""Candidates at most."""
MAX_PUBLIC = 1000
"""Rows of the test split that attacks compare candidates with at most."""
QUERY_BATCH = 500
"""Rows of one query of a model."""
TRIED_ROWS = 64
"""Random rows on which a loss is compared with cross-entropy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """The knowledge of the attacks: phi of each candidate, see ``confidences``, and its models.

    rows: the candidates in the training split.
    confidence: phi of each candidate under each model, target first.
    inside: whether the model was trained with the candidate.
    accuracy: of each model on the test split, in 0..1; None if targets are no classes.
    public: phi of rows of the test split; None without a test split.
    """

    rows: Int64[np.ndarray, " candidates"]
    confidence: Float[np.ndarray, "models candidates"]
    inside: Bool[np.ndarray, "models candidates"]
    accuracy: tuple[float, ...] | None
    public: "PublicRows | None" = None


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicRows:
    """phi of rows of the test split, which no model was trained with; see ``PublicAnswers``.

    confidence: phi of each public row under each model, target first.
    first: phi of each public row under the public model before training.
    first_of_candidates: the same of each candidate.
    features: of each public row.
    features_of_candidates: of each candidate.
    """

    confidence: Float[np.ndarray, "models public"]
    first: Float[np.ndarray, " public"]
    first_of_candidates: Float[np.ndarray, " candidates"]
    features: Float[np.ndarray, "public features"]
    features_of_candidates: Float[np.ndarray, "candidates features"]

    def against(self, target: int, shadows: list[int]) -> PublicAnswers:
        """The part that an attack on one model reads, with others as shadows."""
        return PublicAnswers(
            target=self.confidence[target],
            shadows=self.confidence[shadows],
            first=self.first,
            first_of_candidates=self.first_of_candidates,
            features=self.features,
            features_of_candidates=self.features_of_candidates,
        )


def train_all(plan: Plan, *, shadows: int, seed: int, tick: Tick) -> Trained:
    """Train the target and its shadows, and query each for every candidate.

    Candidates are all units, or ``MAX_CANDIDATES`` at random. ``seed`` repeats all draws and the
    noise. The initial weights, carriers and clients of all models are those of ``plan``: they come
    from its public seed, which the attacker knows. Raises ValueError for too few shadows, for a
    client that is left without an example, and for a model that diverged.
    """
    check_clients(plan)
    total = count_units(plan)
    inside = halves(shadows, total, seed)
    draw = torch.randperm(total, generator=public_generator(seed, "membership", "candidates"))
    rows = draw[:MAX_CANDIDATES].sort().values
    if plan.unit.single:
        rows = plan.workload.train.order(rows)
    public = public_rows(plan, seed)
    answers, public_answers, accuracy = [], [], []
    for number, members in enumerate(inside):

        def on_round(done: int, number: int = number) -> None:
            share = (number + done / plan.schedule.rounds) / len(inside)
            tick(share, f"model {number + 1} of {len(inside)}, round {done}")

        with train_model(half_plan(plan, members), seed, number, on_round) as model:
            answers.append(confidences_of(model, plan, rows))
            public_answers.append(
                confidences(model, plan.workload, plan.workload.test, public, plan.device)
            )
            accuracy.append(accuracy_of(model, plan.workload, plan.device))
        if not np.isfinite(answers[-1]).all():
            raise ValueError(
                f"model {number + 1} of {len(inside)} diverged: its outputs are not finite; train "
                "slower"
            )
    return Trained(
        rows=rows.numpy(),
        confidence=np.stack(answers),
        inside=inside[:, rows].numpy(),
        accuracy=None if plan.workload.num_classes is None else tuple(accuracy),
        public=before_training(plan, rows, public, np.stack(public_answers))
        if len(public)
        else None,
    )


def public_rows(plan: Plan, seed: int) -> Int64[Tensor, " public"]:
    """Random rows of the test split, ``MAX_PUBLIC`` at most."""
    generator = public_generator(seed, "membership", "public")
    rows = torch.randperm(len(plan.workload.test), generator=generator)[:MAX_PUBLIC]
    return plan.workload.test.order(rows)


def before_training(
    plan: Plan,
    candidates: Int64[Tensor, " candidates"],
    public: Int64[Tensor, " public"],
    confidence: Float[np.ndarray, "models public"],
) -> PublicRows:
    """Public rows with their phi under all models, and under the model before private training."""
    test = plan.workload.test
    with plan.initial.server().evaluated() as model:
        return PublicRows(
            confidence=confidence,
            first=confidences(model, plan.workload, test, public, plan.device),
            first_of_candidates=confidences_of(model, plan, candidates),
            features=features(model, plan.workload, test, public, plan.device),
            features_of_candidates=mean_by_unit(candidates, plan, partial(features, model)),
        )


def halves(shadows: int, examples: int, seed: int) -> Bool[Tensor, "models examples"]:
    """Whether each model has each example, the target first.

    Shadows 1 and 2, 3 and 4, ... complement each other. Guarantee: a model has an example with
    probability 1/2. Draws of different models are independent, except within a pair. Raises
    ValueError for an odd number of shadows, or too few.
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
    if model == 0:
        return None
    return model + 1 if model % 2 else model - 1


def half_plan(plan: Plan, members: Bool[Tensor, " examples"]) -> Plan:
    """The plan on one half of the examples, of the persons or of the clients.

    Rate and noise are the same, the public divisor is that of half the data. At client level the
    divisor is the same, too: it is a public constant.
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
    terms = [
        replace(terms, num_examples=half.rows.size_of(client))
        for client, terms in enumerate(plan.terms)
    ]
    return replace(half, terms=tuple(terms))


@contextmanager
def train_model(
    plan: Plan, seed: int, number: int, on_round: Callable[[int], None]
) -> Iterator[nn.Module]:
    """Train a model by the local engine; yields it as it is evaluated."""
    # a stream for each model: by the public seed alone all models would have the same noise
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
    return mean_by_unit(candidates, plan, partial(confidences, model))


def mean_by_unit(
    candidates: Tensor, plan: Plan, of_rows: Callable[..., np.ndarray]
) -> Float[np.ndarray, "candidates *shape"]:
    """``of_rows(workload, split, rows, device)`` for each candidate.

    A candidate is an example, or a client or person with the mean over its examples.
    """
    workload, device = plan.workload, plan.device
    if plan.person is not None:
        order, counts = plan.person.argsort(stable=True), plan.person.bincount()
        of_person = order.split(counts.tolist())
        parts = [of_person[int(candidate)] for candidate in candidates]
    elif plan.unit.whole:
        parts = [plan.parts[int(client)] for client in candidates]
    else:
        return of_rows(workload, workload.train, candidates, device)
    return np.stack([of_rows(workload, workload.train, part, device).mean(0) for part in parts])


@torch.no_grad()
def confidences(
    model: nn.Module, workload: LoadedWorkload, split: Split, rows: Tensor, device: str
) -> Float[np.ndarray, " rows"]:
    """phi of each row, from one query without augmentation, in evaluation mode.

    log(p / (1 - p)) of the true class if the loss is cross-entropy times a constant, else minus the
    loss: higher for rows that the model fits better.
    """
    training, parts = model.training, []
    model.eval()
    has_classes = is_cross_entropy(workload)
    for batch in rows.split(QUERY_BATCH):
        inputs, targets = split.batch(batch)
        outputs = model_outputs(model, to_device(inputs, device))
        if has_classes:
            parts.append(scaled_confidence(scores_of(outputs).double().cpu(), targets))
        else:
            parts.append(-workload.loss(outputs, targets.to(device)).double().cpu())
    model.train(training)
    return torch.cat(parts).numpy()


@torch.no_grad()
def features(
    model: nn.Module, workload: LoadedWorkload, split: Split, rows: Tensor, device: str
) -> Float[np.ndarray, "rows features"]:
    """Features of each row for a regression on public rows.

    They are the one-hot class and the outputs of a public model; phi alone if targets are no
    classes.
    """
    if workload.num_classes is None:
        return confidences(model, workload, split, rows, device)[:, np.newaxis]
    parts, training = [], model.training
    model.eval()
    for batch in rows.split(QUERY_BATCH):
        inputs, targets = split.batch(batch)
        outputs = scores_of(model_outputs(model, to_device(inputs, device))).double().cpu()
        classes = functional.one_hot(targets, workload.num_classes).double()
        parts.append(torch.cat([classes, outputs], 1))
    model.train(training)
    return torch.cat(parts).numpy()


def accuracy_of(model: nn.Module, workload: LoadedWorkload, device: str) -> float:
    """Share of the test split that the model gets right; NaN if targets are no classes."""
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
    logits = torch.randn(TRIED_ROWS, workload.num_classes, generator=generator, dtype=torch.float64)
    labels = torch.arange(TRIED_ROWS) % workload.num_classes
    try:
        ratio = workload.loss(logits, labels) / functional.cross_entropy(
            logits, labels, reduction="none"
        )
        return bool((ratio > 0).all()) and torch.allclose(
            ratio, ratio[0].expand(TRIED_ROWS), rtol=1e-5
        )
    except Exception:  # a user's own loss for other outputs may raise anything
        return False


def count_units(plan: Plan) -> int:
    """The number of units: training examples, persons, or clients."""
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
    """The plan with these clients only; rate, noise and divisor are public constants."""
    kept = members.nonzero().squeeze(1).tolist()
    return replace(
        plan,
        parts=[plan.parts[client] for client in kept],
        terms=tuple(plan.terms[client] for client in kept),
    )
