"""Attacks on the model and the payloads of a run itself: no shadow model is trained.

Members are training examples of the run, others are rows of the test split. One half of that split
is public to the attacker, the other half is what it has to distinguish. The two splits may differ
in more than membership.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.attacks.membership.answers import Answers, PublicAnswers
from fedlsg.attacks.membership.matched_filter import SeenRound, sum_rounds
from fedlsg.attacks.membership.scores import membership_attacks
from fedlsg.attacks.observation import Observation
from fedlsg.attacks.roc import Rate, Roc, roc
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.privacy.clip import clipped_sums
from fedlsg.randomness import public_generator
from fedlsg.simulations.attacks.membership.measure import (
    confidence_of_each,
    refuting_confidence_of_each,
    threshold_on,
    usable,
)
from fedlsg.simulations.attacks.membership.shadows import confidences, features
from fedlsg.simulations.attacks.observations import Record, load_record
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import payload_files
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.training import per_unit

MAX_CLIENTS = 5
"""Clients whose payloads are attacked at most: those with most recorded rounds."""
MAX_CANDIDATES = 200
"""Members of each of them that are tried at most, and public rows that are used at most."""
SUM_OF_ROUNDS = "sum of rounds"
"""The name of the attack on payloads."""

Rows = Int64[Tensor, " rows"]
"""Rows of a split."""


@dataclass(frozen=True, kw_only=True)
class OwnAttack:
    """The result of an attack on the run itself.

    success: share of right answers as in Yu et al. 2021, Table 5.
    roc: rates with intervals that are simultaneous over all attacks of the table.
    sure: the same with intervals that may contradict a claim.
    members: how many were tried.
    others: how many were tried.
    """

    success: Rate
    roc: Roc
    sure: Roc
    members: int
    others: int


ScorePair = tuple[Float[np.ndarray, " members"], Float[np.ndarray, " others"]]
"""Scores of members, and of others."""


def scores_on_run(run: str, plan: Plan, seed: int) -> Mapping[str, ScorePair]:
    """Scores of attacks on the run's last model, and on its payloads if each is readable.

    Empty before the first checkpoint, for a unit that is no example, and for fewer than four test
    rows, which are too few for two halves.
    """
    directory = RunDir.open(run)
    if not plan.unit.single or not directory.checkpoint.exists() or len(plan.workload.test) < 4:
        return {}
    scores = scores_on_model(directory, plan, seed)
    if plan.settings.trust == "client" and payload_files(directory.path):
        scores[SUM_OF_ROUNDS] = scores_on_payloads(load_record(directory), seed)
    return scores


def own_attacks(
    scores: Mapping[str, ScorePair], *, attacks: int, seed: int
) -> Mapping[str, OwnAttack]:
    """Results by attack. ``attacks``: their number in the whole table, these and others."""
    return {
        name: OwnAttack(
            success=threshold_on(members, others, seed).success,
            roc=roc(members, others, confidence=confidence_of_each(attacks)),
            sure=roc(members, others, confidence=refuting_confidence_of_each(attacks)),
            members=len(members),
            others=len(others),
        )
        for name, (members, others) in scores.items()
    }


def scores_on_model(directory: RunDir, plan: Plan, seed: int) -> dict[str, ScorePair]:
    """Scores of members and others by every attack that needs no shadow model."""
    train, test = plan.workload.train, plan.workload.test
    public_rows, others = halves_of_test(test, seed)
    members = train.order(draw_rows(train, len(others), seed))
    public = [(test, public_rows)]
    candidates = [(train, members), (test, others)]  # members first

    def read(of_rows: Callable[..., np.ndarray], parts: list[tuple[Split, Rows]]) -> np.ndarray:
        """``of_rows`` of the parts one after the other, by the present weights of ``state``."""
        with state.evaluated() as model:
            values = [
                of_rows(model, plan.workload, split, rows, plan.device) for split, rows in parts
            ]
        return np.concatenate(values)

    state = plan.initial.server()
    first, first_of_candidates = read(confidences, public), read(confidences, candidates)
    public_features, candidate_features = read(features, public), read(features, candidates)
    state.load_state_dict(directory.load_checkpoint()["server"])
    phi_of_public, phi = read(confidences, public), read(confidences, candidates)
    answers = Answers(
        target=phi,
        shadows=np.zeros((0, len(phi))),
        inside=np.zeros((0, len(phi)), bool),
        public=PublicAnswers(
            target=phi_of_public,
            shadows=np.zeros((0, len(phi_of_public))),
            first=first,
            first_of_candidates=first_of_candidates,
            features=public_features,
            features_of_candidates=candidate_features,
        ),
    )
    pairs = {}
    for attack in membership_attacks():
        if usable(attack, answers):
            scores = attack.score(answers)
            pairs[attack.name] = (scores[: len(members)], scores[len(members) :])
    return pairs


def scores_on_payloads(record: Record, seed: int) -> ScorePair:
    """Scores of the rows of a few clients, and of test rows, by the sum over a client's rounds.

    The expected rest of a batch is the mean of public rows. Each test row is tried with one client.
    """
    public, others = halves_of_test(record.base.workload.test, seed)
    rounds = Counter(client for payloads in record.payloads.values() for client in payloads)
    clients = [client for client, _ in rounds.most_common(MAX_CLIENTS)]
    members_scores, others_scores = [], []
    for client, absent in zip(clients, others.tensor_split(len(clients)), strict=True):
        part = record.base.parts[client]
        order = torch.randperm(len(part), generator=public_generator(seed, "membership", client))
        present = record.base.workload.train.order(part[order[:MAX_CANDIDATES]])
        score = sum_rounds(seen_rounds(record, client, present, absent, public[:MAX_CANDIDATES]))
        members_scores.append(score[: len(present)].numpy())
        others_scores.append(score[len(present) :].numpy())
    return np.concatenate(members_scores), np.concatenate(others_scores)


def seen_rounds(
    record: Record, client: int, present: Rows, absent: Rows, public: Rows
) -> Iterator[SeenRound]:
    """Each payload of a client less the expected batch, and the gradients of the candidates.

    Gradients are at the public weights of the payload's round. Candidates are training rows
    ``present``, then test rows ``absent``.
    """
    workload = record.base.workload
    for number, payloads in sorted(record.payloads.items()):
        if client not in payloads:
            continue
        seen = record.observation(number, client)
        mean = clipped_gradients(seen, workload, workload.test, public).mean(0)
        rest = mean * seen.local.expected_batch
        of_present = clipped_gradients(seen, workload, workload.train, present)
        of_absent = clipped_gradients(seen, workload, workload.test, absent)
        yield SeenRound(
            received=seen.values - rest * seen.local.steps,
            gradients=torch.cat([of_present, of_absent]),
            noise_std=seen.noise_std,
        )


def clipped_gradients(
    seen: Observation, workload: LoadedWorkload, split: Split, rows: Rows
) -> Float[Tensor, "rows kept"]:
    """The addition of each row alone to a payload at the round's weights, by the client's code."""
    inputs, targets = split.batch(rows)
    blocks = per_example_gradients(seen.model, workload.loss, inputs, targets, seen.frame)
    units = per_unit(blocks, seen.frame, 1)  # one gradient an example
    if not seen.mechanism.clips:
        return torch.cat([unit.flatten(1) for unit in units], 1)
    runs = [range(row, row + 1) for row in range(len(rows))]
    return torch.stack([*clipped_sums(units, seen.mechanism, runs, slot=1)])


def halves_of_test(test: Split, seed: int) -> tuple[Rows, Rows]:
    """Rows of the test split that are public, and those that are to be distinguished."""
    order = draw_rows(test, len(test), seed)
    half = len(order) // 2
    return test.order(order[:half]), test.order(order[half:])


def draw_rows(split: Split, count: int, seed: int) -> Rows:
    """``count`` random rows of a split."""
    generator = public_generator(seed, "membership", "own")
    return torch.randperm(len(split), generator=generator)[:count]
