"""Games of many equal units: of several norms, in parts of the coordinates, few of them, ghost
gradients, clients that share a pass.

A game has k directions, with equally many units in each, for several rounds in which batches are
drawn anew. What is recorded is how far each output went in each direction. So an excess that one
norm, one part of the coordinates, or one path has is not averaged away, and the rounds of a game
are one observation: who took part in one round must say nothing of another.

Symbols: n units in each direction, q, W, R as in ``sample_sizes``.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.attacks.audit.played.canaries import (
    LENGTH_OVER_CLIP,
    largest_addition,
    orthonormal_rows,
    undo_block_weights,
)
from fedlsg.attacks.audit.played.injection import Units, ghost_layers, given_gradients
from fedlsg.attacks.audit.played.outputs import (
    GIVEN_GRADIENTS,
    Output,
    Rows,
    can_pass,
    make_output,
    outputs_of_pass,
)
from fedlsg.attacks.audit.played.sample_sizes import MAX_CLIENT_STEPS, equal_units, max_units
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.randomness import SecretStream, public_generator, reproducible_stream, secret_stream
from fedlsg.secure_sum.discrete.grid import random_signs, unrotate, window
from fedlsg.training.example_gradients import ExampleGradients

NORMS = (0.5, 1.0, 1.1, 1.5, 1.9, 2.0, 4.0, 10.0)
"""Norms of units over C. Those below 1 pass unclipped; a clip that begins too late lets others
pass.
"""
NORMS_ALONE = (0.5, 1.5, 1.9, 10.0)
"""Of units that are too few for all norms at once."""
FEW_UNITS, FEW_ROUNDS = 4, 32
"""Units that are few, so that what a step adds for any number of units is not hidden by many."""
PLACES, PLACE_EXCESS, PLACE_ROUNDS, PLACE_NUMBERS = 3, 2.0, 1024, 2**26
"""Places of a batch: the first row, the middle and the last one are each of units of one direction,
of which this many are expected in a batch. Rounds, and numbers in their outputs, at the most.
"""
PLACE_Z = 8.5
"""Standard errors of what one row adds that counts twice: a bound of Chernoff takes about five."""
PART_ERROR = 0.1
"""Standard error of a part's movement: a part that counts double is then found."""
FEWEST_PARTS, GAME_ROUNDS, MOST_ROUNDS = 8, 16, 64
DRAWN_NUMBERS, DRAWN_BY_SERVER = 2**21, 200
"""Numbers in the gradients of an output's batch; updates that a server clips one by one."""
PASS_CLIENTS, IN_PASS, NORMS_IN_PASS = 4, 20, (1.5, 10.0)
"""Clients that share a pass, the expected batch of small ones, and norms of the units of one."""
COUNTS_OF_NOBODY, COUNTED_UNITS = 256, 64
"""Releases of the noisy count without units; units that it counts in others."""
Tick = Callable[[], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """What was seen of one game.

    moves: (rounds, k) how far each output went in each direction, over what its units may add on
        average: at most 1 in the mean.
    units: n.
    lengths: (k,) what one unit may add, over the sensitivity.
    elsewhere: the outputs of clients without these units, which share a pass: all noise.
    """

    name: str
    moves: Float[np.ndarray, "rounds k"]
    units: int
    lengths: Float[np.ndarray, " k"]
    elsewhere: Float[np.ndarray, "rounds kept"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Count:
    """What the noisy counts of an adaptive clip say, in clients: ``empty`` of nobody, and of
    ``units`` drawn ones that are all within the clip, or all beyond it.
    """

    empty: Float[np.ndarray, " rounds"]
    moved: dict[str, Float[np.ndarray, " rounds"]]
    units: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """How a game is played: orthonormal ``directions``, the norms of their units over C, and how
    many units each has.

    on_grid: the directions are of what a secure sum adds up, after the rotation.
    shared: the units are one client's, in a pass with others.
    in_order: the units of a direction follow each other.
    gradients: of the units, in place of a backward pass.
    """

    name: str
    directions: Float[Tensor, "k kept"]
    norms: Float[Tensor, " k"]
    each: int
    rounds: int = GAME_ROUNDS
    on_grid: bool = False
    shared: bool = False
    in_order: bool = False
    gradients: ExampleGradients = GIVEN_GRADIENTS


def stream_of(seed: int | None, *labels: str | int) -> SecretStream:
    """A stream of the audit's own: fresh, or repeated by a seed."""
    return secret_stream() if seed is None else reproducible_stream(seed, "audit", *labels)


def rounds_of(
    setting: AuditSetting,
    rows: Rows | Units,
    name: str,
    seed: int | None,
    rounds: int,
    tick: Tick,
    gradients: ExampleGradients = GIVEN_GRADIENTS,
    rotation: int | None = None,
) -> list[Output]:
    """Outputs with the units of each round, on the CPU; the steps are on the model's device.

    ``rotation``: the round whose public rotation all have, by default each its own.
    """
    outputs, rows = [], rows.to(next(setting.model.parameters()).device)
    for round in range(rounds):

        def draw(purpose: str, client: int = 0, round: int = round) -> SecretStream:
            return stream_of(seed, purpose, name, round, client)

        rotated = round if rotation is None else rotation
        outputs.append(make_output(setting, rows, draw, rotated, gradients))
        tick()
    return outputs


def games_of(setting: AuditSetting, seed: int | None) -> list[Round]:
    """All games that the setting can play."""
    generator = public_generator(0 if seed is None else seed, "games")
    norms = torch.tensor(NORMS[-max(1, min(len(NORMS), setting.frame.kept // 2)) :])
    dense = orthonormal_rows([b.kept for b in setting.frame.blocks], len(norms), generator)
    few = Round(
        name="few units", directions=dense[:1], norms=norms[-1:], each=FEW_UNITS, rounds=FEW_ROUNDS
    )
    return [
        *_of_norms(setting, norms, dense),
        *([] if max_units(setting) else [few]),
        *_of_places(setting, dense),
        *_of_parts(setting, generator),
        *_of_ghosts(setting, generator),
        *_of_passes(setting, dense, generator),
    ]


def _of_norms(setting: AuditSetting, norms: Tensor, dense: Tensor) -> Iterator[Round]:
    """All norms in one game; where a sum has fewer units than that, one after the other."""
    units = min(equal_units(setting), drawn_units(setting))
    if units >= len(norms):
        yield Round(name="norms", directions=dense, norms=norms, each=units // len(norms))
        return
    for norm in NORMS_ALONE:
        yield Round(
            name=f"norm {norm:g} C",
            directions=dense[:1],
            norms=torch.tensor([norm]),
            each=units,
        )


def _of_places(setting: AuditSetting, dense: Tensor) -> Iterator[Round]:
    """Few units of one direction at the begin of a batch, of another in its middle, and of a third
    at its end: what is done to the row of one place adds up to C in every round.

    As many rounds as find one row that counts twice, as far as they do not take too long.
    """
    if max_units(setting) or len(dense) < PLACES:
        return
    q, noise = setting.stated.sample_rate, setting.noise_std / setting.sensitivity
    each = math.ceil(PLACE_EXCESS / q)
    there = 1 - (1 - q) ** each  # some of them are in a batch
    variance = (noise / sum(setting.weights)) ** 2 + each * q * (1 - q)
    wanted = math.ceil(variance * (PLACE_Z / there) ** 2)
    most = min(PLACE_ROUNDS, PLACE_NUMBERS // setting.frame.kept)
    yield Round(
        name="places of a batch",
        directions=dense[:PLACES],
        norms=torch.full((PLACES,), LENGTH_OVER_CLIP),
        each=each,
        rounds=max(FEW_ROUNDS, min(wanted, most)),
        in_order=True,
    )


def _of_parts(setting: AuditSetting, generator: torch.Generator) -> Iterator[Round]:
    """Units in parts of the coordinates: neighbours, and those at equal distances; of a secure sum
    also parts of what is added up, after the rotation.
    """
    kept, (parts, each, rounds) = setting.frame.kept, sizes_of_parts(setting)
    at = torch.arange(kept)
    signs = torch.randint(0, 2, (kept,), generator=generator) * 2.0 - 1.0
    directions = {"parts": _parts(at * parts // kept, signs)}
    if kept > 2 * parts and setting.sums is None:
        directions["parts of coordinates far apart"] = _parts(at % parts, signs)
    if setting.sums is not None:
        directions["parts of the grid"] = directions["parts"]
    for name, ways in directions.items():
        yield Round(
            name=name,
            directions=ways,
            norms=torch.full((parts,), LENGTH_OVER_CLIP),
            each=each,
            rounds=rounds,
            on_grid=name == "parts of the grid",
        )


def _parts(labels: Tensor, signs: Tensor) -> Float[Tensor, "k kept"]:
    """A direction for each label: a sign on each of its coordinates."""
    chosen = (labels == torch.arange(int(labels.max()) + 1).unsqueeze(1)) * signs
    directions: Tensor = chosen / chosen.norm(dim=1, keepdim=True)
    return directions


def _of_ghosts(setting: AuditSetting, generator: torch.Generator) -> Iterator[Round]:
    """Units that reach the clip as factors g and x of a weight, as in ghost clipping; with several
    positions their norms are computed in another way.
    """
    for positions in (1, 2):
        if layers := ghost_layers(setting, generator, positions):
            ways = torch.stack([layer.direction for layer in layers.values()])
            yield Round(
                name=f"ghost gradients, {positions} position{'s' * (positions > 1)}",
                directions=ways,
                norms=torch.full((len(ways),), 1.5 * positions),
                each=equal_units(setting) // len(ways),
                gradients=given_gradients(layers),
            )


def _of_passes(setting: AuditSetting, dense: Tensor, generator: torch.Generator) -> Iterator[Round]:
    """One of a pass's clients has the units: of small clients, whose rows fill equal slots, and of
    larger ones.
    """
    if not can_pass(setting):
        return
    norms = torch.tensor(NORMS_IN_PASS)[-len(dense) :]
    small = math.ceil(IN_PASS / len(norms) / setting.stated.sample_rate)
    one = Round(
        name="small clients of a pass",
        directions=dense[: len(norms)],
        norms=norms,
        each=small,
        rounds=2 * GAME_ROUNDS,
        shared=True,
    )
    yield one
    large = max(2 * small, equal_units(setting) // len(norms))
    yield replace(one, name="clients of a pass", each=large, rounds=GAME_ROUNDS)
    for game in list(_of_ghosts(setting, generator))[:1]:
        each = math.ceil(IN_PASS / len(game.norms) / setting.stated.sample_rate)
        yield replace(game, name="ghost gradients of a pass", each=each, shared=True)


def _before_rotation(ways: Tensor) -> Tensor:
    """What the public rotation of round 0 turns into these directions."""
    signs = random_signs(ways.shape[1], public_generator(0, "rotation", 0))
    return torch.stack([unrotate(way, signs) for way in ways]).float()


def drawn_units(setting: AuditSetting) -> int:
    """Units of one output at most, so that its batch takes as long as a batch may."""
    if most := max_units(setting):
        return most
    drawn = max(FEWEST_PARTS, DRAWN_NUMBERS // setting.frame.kept)
    if setting.stated.trust == "server":
        drawn = min(drawn, DRAWN_BY_SERVER)
    return math.ceil(drawn / setting.stated.sample_rate)


def sizes_of_parts(setting: AuditSetting) -> tuple[int, int, int]:
    """Parts, units in each, and rounds: as many parts as have ``PART_ERROR`` in so many units."""
    q, kept = setting.stated.sample_rate, setting.frame.kept
    noise = setting.noise_std / setting.sensitivity / sum(setting.weights)
    units = drawn_units(setting)
    wanted = noise / PART_ERROR / q / math.sqrt(GAME_ROUNDS)
    drawn = 2 * (1 - q) / q / PART_ERROR**2 / GAME_ROUNDS
    wanted = max(1, math.ceil(math.hypot(wanted, drawn)))
    parts = max(1, min(kept, units // wanted))
    while parts > FEWEST_PARTS and _most_in_part(setting, parts) < wanted:
        parts = max(FEWEST_PARTS, parts // 2)
    if parts >= min(FEWEST_PARTS, kept) and _most_in_part(setting, parts) >= wanted:
        return parts, wanted, GAME_ROUNDS
    parts = max(1, min(FEWEST_PARTS, units, kept))
    each = max(1, min(units // parts, _most_in_part(setting, parts)))
    cost = setting.stated.members if setting.sums is not None else 1
    most = max(GAME_ROUNDS, min(MOST_ROUNDS, MAX_CLIENT_STEPS // cost // 4))
    return parts, each, max(GAME_ROUNDS, min(most, math.ceil((noise / PART_ERROR / q / each) ** 2)))


def _most_in_part(setting: AuditSetting, parts: int) -> int:
    """Units of each part so that no integer of a secure sum wraps around."""
    if setting.sums is None or setting.stated.whole:
        return drawn_units(setting)
    kept, expected = setting.frame.kept, setting.sums.expected_examples
    reach = math.sqrt(2 * math.log(2 * kept / 1e-9) / window(kept))
    room = min(parts**-0.5, reach * math.sqrt(kept / parts))
    rate: float = setting.stated.sample_rate
    most: int = math.floor(expected * min(room, 1.0) / 2 / rate)
    return max(1, most)


def play(setting: AuditSetting, game: Round, seed: int | None, tick: Tick) -> Game:
    """All rounds of a game, and what they say."""
    long = game.norms.unsqueeze(1) * setting.mechanism.clip_norm
    lengths = largest_addition(setting, game.directions)
    reach = game.each * setting.stated.sample_rate * sum(setting.weights)

    ways = _before_rotation(game.directions) if game.on_grid else game.directions
    units = Units(undo_block_weights(setting, ways * long), game.each, in_order=game.in_order)
    elsewhere = None
    if game.shared:
        outputs, elsewhere = _passes(setting, game, units, seed, tick)
    else:
        seen = rounds_of(
            setting,
            units,
            game.name,
            seed,
            game.rounds,
            tick,
            game.gradients,
            0 if game.on_grid else None,
        )
        chosen = [played.grid if game.on_grid else played.values for played in seen]
        outputs = torch.stack([value for value in chosen if value is not None])
    moves = (outputs.double() @ game.directions.double().T) / (lengths * reach)
    return Game(
        name=game.name,
        moves=moves.numpy(),
        units=game.each,
        lengths=(lengths / setting.sensitivity).numpy(),
        elsewhere=elsewhere,
    )


def _passes(
    setting: AuditSetting, game: Round, units: Units, seed: int | None, tick: Tick
) -> tuple[Float[Tensor, "rounds kept"], Float[np.ndarray, "others kept"]]:
    """Outputs of the client with the units, whose place changes, and of the others, whose gradients
    are zero.
    """
    device = next(setting.model.parameters()).device
    silent = Units(torch.zeros(1, setting.frame.kept), len(units))
    steps_with, others = [], []
    for round in range(game.rounds):
        place = round % PASS_CLIENTS
        clients = [(units if i == place else silent).to(device) for i in range(PASS_CLIENTS)]
        labels = [
            {what: stream_of(seed, what, game.name, round, i) for what in ("sampler", "noise")}
            for i in range(PASS_CLIENTS)
        ]
        outputs = outputs_of_pass(setting, clients, labels, game.gradients)
        steps_with.append(outputs.pop(place))
        others += outputs
        tick()
    return torch.stack(steps_with), torch.stack(others).numpy()


def counts_of(setting: AuditSetting, seed: int | None, tick: Tick) -> Count | None:
    """The noisy counts of an adaptive clip; None without one."""
    adaptive = setting.adaptive
    if adaptive is None:
        return None
    way = torch.full((1, setting.frame.kept), setting.frame.kept**-0.5)

    def counts(name: str, rows: Rows | Units, rounds: int) -> Float[np.ndarray, " rounds"]:
        seen = rounds_of(setting, rows, name, seed, rounds, tick)
        moved = torch.tensor([played.clip_norm for played in seen], dtype=torch.float64)
        fraction = adaptive.quantile - (moved / setting.mechanism.clip_norm).log() / adaptive.rate
        return ((fraction - 0.5) * adaptive.expected_clients).numpy()

    moved = {
        name: counts(
            name, Units(way * norm * setting.mechanism.clip_norm, COUNTED_UNITS), GAME_ROUNDS
        )
        for name, norm in (
            ("count within the clip", 0.5),
            ("count beyond the clip", LENGTH_OVER_CLIP),
        )
    }
    return Count(
        empty=counts("count of nobody", way[:0], COUNTS_OF_NOBODY), moved=moved, units=COUNTED_UNITS
    )


def rounds_of_counts(setting: AuditSetting) -> int:
    """How often ``counts_of`` reports progress."""
    return 0 if setting.adaptive is None else 2 * GAME_ROUNDS + COUNTS_OF_NOBODY
