"""Attacks on the model and the payloads of a run itself: no shadow model is trained.

Members are training examples of the run, others are rows of the test split. One half of that split
is public to the attacker, the other half is what it has to distinguish. The two splits may differ
in more than membership.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.attacks.membership.answers import Answers, Public
from fedlsg.attacks.membership.matched_filter import SeenRound, sum_rounds
from fedlsg.attacks.membership.scores import membership_attacks
from fedlsg.attacks.observation import Observation
from fedlsg.attacks.roc import Rate, Roc, roc
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.privacy.clip import clipped_sums
from fedlsg.randomness import public_generator
from fedlsg.simulations.attacks.membership.measure import (
    confidence_of_each,
    sure_of_each,
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

CLIENTS = 5
"""Most clients whose payloads are summed over their rounds: those with most rounds."""
CANDIDATES = 200
"""Most members of each of them that are tried, and most public rows."""
SUM_OF_ROUNDS = "sum of rounds"

Rows = Int64[Tensor, " rows"]


@dataclass(frozen=True, kw_only=True)
class OwnAttack:
    """What an attack finds on the run itself. The intervals of ``roc``, and those at 99 % of
    ``sure``, are simultaneous over all attacks of the table; success as in Yu et al. 2021, Table 5.
    """

    success: Rate
    roc: Roc
    sure: Roc
    members: int
    others: int


Scored = tuple[Float[np.ndarray, " members"], Float[np.ndarray, " others"]]


def scores_on_run(run: str, plan: Plan, seed: int) -> Mapping[str, Scored]:
    """Of every attack without shadow models on the run's last model; and on the payloads of each
    client over all recorded rounds. Empty before its first checkpoint, and for a unit that is no
    example.
    """
    directory = RunDir.open(run)
    if not plan.unit.single or not directory.checkpoint.exists() or len(plan.workload.test) < 4:
        return {}
    scores = on_model(directory, plan, seed)
    if plan.settings.trust == "client" and payload_files(directory.path):
        scores[SUM_OF_ROUNDS] = on_payloads(load_record(directory), seed)
    return scores


def own_attacks(
    scores: Mapping[str, Scored], *, attacks: int, seed: int
) -> Mapping[str, OwnAttack]:
    """What the scores find. ``attacks``: of the whole table, these and others."""
    return {
        name: OwnAttack(
            success=threshold_on(members, others, seed).success,
            roc=roc(members, others, confidence=confidence_of_each(attacks)),
            sure=roc(members, others, confidence=sure_of_each(attacks)),
            members=len(members),
            others=len(others),
        )
        for name, (members, others) in scores.items()
    }


def on_model(directory: RunDir, plan: Plan, seed: int) -> dict[str, Scored]:
    """Scores of members and others by every attack that needs no shadow model."""
    train, test, w = plan.workload.train, plan.workload.test, plan.workload
    public, others = halves_of_test(test, seed)
    members = train.order(shuffled(train, len(others), seed))
    candidates = ((train, members), (test, others))

    def read(of: Callable[..., np.ndarray], places: Sequence[tuple[Split, Rows]]) -> np.ndarray:
        with state.evaluated() as model:
            return np.concatenate([of(model, w, *place, plan.device) for place in places])

    state = plan.initial.server()
    before = [
        read(of, places)
        for of in (confidences, features)
        for places in ([(test, public)], candidates)
    ]
    state.load_state_dict(directory.load_checkpoint()["server"])
    target, phi = read(confidences, [(test, public)]), read(confidences, candidates)
    answers = Answers(
        target=phi,
        shadows=np.zeros((0, len(phi))),
        inside=np.zeros((0, len(phi)), bool),
        public=Public(
            target=target,
            shadows=np.zeros((0, len(target))),
            first=before[0],
            first_of_candidates=before[1],
            features=before[2],
            features_of_candidates=before[3],
        ),
    )
    scores = {
        attack.name: attack.score(answers)
        for attack in membership_attacks()
        if usable(attack, answers)
    }
    return {name: (s[: len(members)], s[len(members) :]) for name, s in scores.items()}


def on_payloads(record: Record, seed: int) -> Scored:
    """Scores of the rows of a few clients, and of test rows, by the sum over a client's rounds.

    The expected rest of a batch is that of public rows. Each test row is tried with one client.
    """
    public, others = halves_of_test(record.base.workload.test, seed)
    rounds = Counter(client for payloads in record.payloads.values() for client in payloads)
    clients = [client for client, _ in rounds.most_common(CLIENTS)]
    members_scores, others_scores = [], []
    for client, absent in zip(clients, others.tensor_split(len(clients)), strict=True):
        held = record.base.parts[client]
        order = torch.randperm(len(held), generator=public_generator(seed, "membership", client))
        present = record.base.workload.train.order(held[order[:CANDIDATES]])
        score = sum_rounds(seen_rounds(record, client, present, absent, public[:CANDIDATES]))
        members_scores.append(score[: len(present)].numpy())
        others_scores.append(score[len(present) :].numpy())
    return np.concatenate(members_scores), np.concatenate(others_scores)


def seen_rounds(
    record: Record, client: int, present: Rows, absent: Rows, public: Rows
) -> Iterator[SeenRound]:
    """Each payload of a client less the expected batch, with the gradients of training rows
    ``present`` and test rows ``absent`` at that round's public weights.
    """
    w = record.base.workload
    for number, payloads in sorted(record.payloads.items()):
        if client not in payloads:
            continue
        seen = record.observation(number, client)
        rest = clipped_gradients(seen, w, w.test, public).mean(0) * seen.local.expected_batch
        candidates = [
            clipped_gradients(seen, w, split, rows)
            for split, rows in ((w.train, present), (w.test, absent))
        ]
        yield SeenRound(
            received=seen.values - rest * seen.local.steps,
            gradients=torch.cat(candidates),
            noise_std=seen.noise_std,
        )


def clipped_gradients(
    seen: Observation, workload: LoadedWorkload, split: Split, rows: Rows
) -> Float[Tensor, "rows kept"]:
    """What each row alone adds to a payload at the round's weights, by the client's own code."""
    inputs, targets = split.batch(rows)
    blocks = per_example_gradients(seen.model, workload.loss, inputs, targets, seen.frame)
    units = per_unit(blocks, seen.frame, 1)
    if not seen.mechanism.clips:
        return torch.cat([unit.flatten(1) for unit in units], 1)
    runs = [range(row, row + 1) for row in range(len(rows))]
    return torch.stack([*clipped_sums(units, seen.mechanism, runs, slot=1)])


def halves_of_test(test: Split, seed: int) -> tuple[Rows, Rows]:
    """Rows of the test split that are public, and those that are to be distinguished."""
    drawn = shuffled(test, len(test), seed)
    half = len(drawn) // 2
    return test.order(drawn[:half]), test.order(drawn[half:])


def shuffled(split: Split, count: int, seed: int) -> Rows:
    """Some rows of a split, drawn at random."""
    generator = public_generator(seed, "membership", "own")
    return torch.randperm(len(split), generator=generator)[:count]
