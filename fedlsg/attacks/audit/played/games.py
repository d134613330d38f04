"""Games of an audit: rounds with many equal units, to measure how far units move an output.

A game has k directions, with equally many units in each, for several rounds in which batches are
drawn anew. The distance that each output moved in each direction is recorded. There are games for
several norms of the units, for parts of the coordinates, for few units, for ghost gradients, and
for clients that share a pass. So an excess of one norm, one part or one code path is not averaged
away. The rounds of a game are one observation: participation in one round must say nothing about
another round.

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
"""Norms of units over C. A norm below 1 passes unclipped. A clip that begins too late would let a
norm above 1 pass.
"""
NORMS_ALONE = (0.5, 1.5, 1.9, 10.0)
"""Norms over C that are played one after the other, if there are too few units for all at once."""
FEW_UNITS = 4
"""Units of the game of few units: many would hide what a step adds for any number of units."""
FEW_ROUNDS = 32
"""Rounds of that game, and the fewest rounds of the game of places."""
PLACES = 3
"""Places of a batch that are tested: the first rows, the middle and the last rows."""
PLACE_EXCESS = 2.0
"""Units of each place that are expected in a batch."""
PLACE_ROUNDS = 1024
"""Rounds of the game of places, at most."""
PLACE_NUMBERS = 2**26
"""Numbers in all outputs of that game, at most."""
PLACE_Z = 8.5
"""A row that counts twice adds so many standard errors; a Chernoff bound finds about five."""
PART_ERROR = 0.1
"""Standard error of a part's movement: a part that counts double is then found."""
FEWEST_PARTS = 8
"""Parts of the coordinates, at least, if there are so many."""
GAME_ROUNDS = 16
"""Rounds of most games."""
MOST_ROUNDS = 64
"""Rounds of a game of parts, at most."""
DRAWN_NUMBERS = 2**21
"""Numbers in the gradients of the expected batch of an output, at most."""
DRAWN_BY_SERVER = 200
"""Updates in an output of a server, which clips them one by one, at most."""
PASS_CLIENTS = 4
"""Clients that share a pass."""
IN_PASS = 20
"""The expected batch of a small client in a pass."""
NORMS_IN_PASS = (1.5, 10.0)
"""Norms over C of the units of one client in a pass."""
COUNTS_OF_NOBODY = 256
"""Releases of the noisy count without units."""
COUNTED_UNITS = 64
"""Units in the other releases of the noisy count."""
WRAP_CHANCE = 1e-9
"""Probability with which an integer of a secure sum may wrap around."""
Tick = Callable[[], None]
"""Reports that one round is done."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """The record of one game.

    name: of the game.
    moves: how far each output moved in each direction, over what its units may add on average.
        Under the claim the mean is at most 1.
    units: n.
    lengths: what one unit may add in each direction, over the sensitivity.
    elsewhere: outputs of clients without these units, which share a pass: noise alone. None if no
        clients share a pass.
    """

    name: str
    moves: Float[np.ndarray, "rounds k"]
    units: int
    lengths: Float[np.ndarray, " k"]
    elsewhere: Float[np.ndarray, "rounds kept"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Count:
    """The noisy counts of an adaptive clip, in clients, less half of the expected clients.

    empty: without units.
    moved: with ``units`` units that are all within the clip, or all beyond it, by the name of the
        game.
    units: number of units.
    """

    empty: Float[np.ndarray, " rounds"]
    moved: dict[str, Float[np.ndarray, " rounds"]]
    units: int


@dataclass(frozen=True, kw_only=True, eq=False)
class GamePlan:
    """The plan of a game.

    name: of the game.
    directions: orthonormal rows.
    norms: of the units of each direction, over C.
    each: units of each direction.
    rounds: number of rounds.
    on_grid: whether the directions are of the values that a secure sum adds up, after the rotation.
    shared: whether the units are one client's, in a pass with other clients.
    in_order: whether the units of a direction follow each other.
    gradients: computes the gradients of the units, in place of a backward pass.
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
    """A stream of random numbers for the audit: fresh, or the same one for the same seed."""
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
    """The output of each round, on the CPU; the steps are on the model's device.

    name: of the game, for the random streams.
    rotation: the round whose public rotation all rounds have; None: each has its own.
    """
    rows = rows.to(next(setting.model.parameters()).device)
    outputs = []
    for number in range(rounds):

        def draw(purpose: str, client: int = 0, number: int = number) -> SecretStream:
            return stream_of(seed, purpose, name, number, client)

        rotation_round = number if rotation is None else rotation
        outputs.append(make_output(setting, rows, draw, rotation_round, gradients))
        tick()
    return outputs


def games_of(setting: AuditSetting, seed: int | None) -> list[GamePlan]:
    """All games that the setting can play."""
    generator = public_generator(0 if seed is None else seed, "games")
    norms = torch.tensor(NORMS[-max(1, min(len(NORMS), setting.frame.kept // 2)) :])
    dense = orthonormal_rows([b.kept for b in setting.frame.blocks], len(norms), generator)
    few = GamePlan(
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


def _of_norms(setting: AuditSetting, norms: Tensor, dense: Tensor) -> Iterator[GamePlan]:
    """All norms in one game; one game for each norm if a sum has too few units for that."""
    units = min(equal_units(setting), drawn_units(setting))
    if units >= len(norms):
        yield GamePlan(name="norms", directions=dense, norms=norms, each=units // len(norms))
        return
    for norm in NORMS_ALONE:
        yield GamePlan(
            name=f"norm {norm:g} C",
            directions=dense[:1],
            norms=torch.tensor([norm]),
            each=units,
        )


def _of_places(setting: AuditSetting, dense: Tensor) -> Iterator[GamePlan]:
    """Units of one direction at the begin of a batch, others in its middle, others at its end.

    They are few: a mistake with the row of one place then shows in every round. There are as many
    rounds as find one row that counts twice, up to ``PLACE_ROUNDS``. A round moves by 1 (in units
    of what one unit adds) with probability 1 - (1 - q)^n, that a unit is in the batch, and varies
    by (s / W)^2 + n q (1 - q), with s the noise over the sensitivity.
    """
    if max_units(setting) or len(dense) < PLACES:
        return
    q, noise = setting.stated.sample_rate, setting.noise_std / setting.sensitivity
    each = math.ceil(PLACE_EXCESS / q)
    probability = 1 - (1 - q) ** each
    variance = (noise / sum(setting.weights)) ** 2 + each * q * (1 - q)
    wanted = math.ceil(variance * (PLACE_Z / probability) ** 2)
    most = min(PLACE_ROUNDS, PLACE_NUMBERS // setting.frame.kept)
    yield GamePlan(
        name="places of a batch",
        directions=dense[:PLACES],
        norms=torch.full((PLACES,), LENGTH_OVER_CLIP),
        each=each,
        rounds=max(FEW_ROUNDS, min(wanted, most)),
        in_order=True,
    )


def _of_parts(setting: AuditSetting, generator: torch.Generator) -> Iterator[GamePlan]:
    """Units in parts of the coordinates: of neighbours, and of coordinates at equal distances.

    For a secure sum, in place of the latter, parts of the values that are added up, after the
    rotation.
    """
    kept = setting.frame.kept
    parts, each, rounds = sizes_of_parts(setting)
    places = torch.arange(kept)
    signs = torch.randint(0, 2, (kept,), generator=generator) * 2.0 - 1.0
    directions = {"parts": _parts(places * parts // kept, signs)}
    if kept > 2 * parts and setting.sums is None:
        directions["parts of coordinates far apart"] = _parts(places % parts, signs)
    if setting.sums is not None:
        directions["parts of the grid"] = directions["parts"]
    for name, rows in directions.items():
        yield GamePlan(
            name=name,
            directions=rows,
            norms=torch.full((parts,), LENGTH_OVER_CLIP),
            each=each,
            rounds=rounds,
            on_grid=name == "parts of the grid",
        )


def _parts(labels: Tensor, signs: Tensor) -> Float[Tensor, "k kept"]:
    """A direction for each label: the sign of each of its coordinates, at length 1."""
    rows = (labels == torch.arange(int(labels.max()) + 1).unsqueeze(1)) * signs
    directions: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return directions


def _of_ghosts(setting: AuditSetting, generator: torch.Generator) -> Iterator[GamePlan]:
    """Units that reach the clip as factors g and x of a weight, as in ghost clipping.

    A game with one position of a unit and one with two, because their norms are computed in
    different ways.
    """
    for positions in (1, 2):
        if layers := ghost_layers(setting, generator, positions):
            directions = torch.stack([layer.direction for layer in layers.values()])
            yield GamePlan(
                name=f"ghost gradients, {positions} position{'s' * (positions > 1)}",
                directions=directions,
                norms=torch.full((len(directions),), 1.5 * positions),
                each=equal_units(setting) // len(directions),
                gradients=given_gradients(layers),
            )


def _of_passes(
    setting: AuditSetting, dense: Tensor, generator: torch.Generator
) -> Iterator[GamePlan]:
    """Clients that share a pass, of which one has the units.

    A game of small clients, whose rows fill equal slots of the pass, and one of larger clients.
    """
    if not can_pass(setting):
        return
    norms = torch.tensor(NORMS_IN_PASS)[-len(dense) :]
    small = math.ceil(IN_PASS / len(norms) / setting.stated.sample_rate)
    game = GamePlan(
        name="small clients of a pass",
        directions=dense[: len(norms)],
        norms=norms,
        each=small,
        rounds=2 * GAME_ROUNDS,
        shared=True,
    )
    yield game
    large = max(2 * small, equal_units(setting) // len(norms))
    yield replace(game, name="clients of a pass", each=large, rounds=GAME_ROUNDS)
    ghost_games = list(_of_ghosts(setting, generator))
    if ghost_games:
        ghosts = ghost_games[0]
        each = math.ceil(IN_PASS / len(ghosts.norms) / setting.stated.sample_rate)
        yield replace(ghosts, name="ghost gradients of a pass", each=each, shared=True)


def _before_rotation(directions: Tensor) -> Tensor:
    """The vectors that the public rotation of round 0 turns into these directions."""
    signs = random_signs(directions.shape[1], public_generator(0, "rotation", 0))
    return torch.stack([unrotate(direction, signs) for direction in directions]).float()


def drawn_units(setting: AuditSetting) -> int:
    """Units of one output, at most, by the memory and the time of its batch."""
    if most := max_units(setting):
        return most
    drawn = max(FEWEST_PARTS, DRAWN_NUMBERS // setting.frame.kept)
    if setting.stated.trust == "server":
        drawn = min(drawn, DRAWN_BY_SERVER)
    return math.ceil(drawn / setting.stated.sample_rate)


def sizes_of_parts(setting: AuditSetting) -> tuple[int, int, int]:
    """Parts, units in each of them (n), and rounds.

    With s the noise over the sensitivity and W, and R rounds, the squared standard error of a
    part's movement is (s / (n q))^2 / R from the noise, and (1 - q) / (n q R) from the draws.
    ``wanted`` units have at most about ``PART_ERROR`` from both. There are as many parts as have so
    many units each; if these are fewer than ``FEWEST_PARTS``, there are more rounds instead.
    """
    q, kept = setting.stated.sample_rate, setting.frame.kept
    noise = setting.noise_std / setting.sensitivity / sum(setting.weights)
    units = drawn_units(setting)
    for_noise = noise / PART_ERROR / q / math.sqrt(GAME_ROUNDS)
    for_draws = 2 * (1 - q) / q / PART_ERROR**2 / GAME_ROUNDS
    wanted = max(1, math.ceil(math.hypot(for_noise, for_draws)))
    parts = max(1, min(kept, units // wanted))
    while parts > FEWEST_PARTS and _most_in_part(setting, parts) < wanted:
        parts = max(FEWEST_PARTS, parts // 2)
    if parts >= min(FEWEST_PARTS, kept) and _most_in_part(setting, parts) >= wanted:
        return parts, wanted, GAME_ROUNDS
    parts = max(1, min(FEWEST_PARTS, units, kept))
    each = max(1, min(units // parts, _most_in_part(setting, parts)))
    steps = setting.stated.members if setting.sums is not None else 1  # client steps of a round
    most = max(GAME_ROUNDS, min(MOST_ROUNDS, MAX_CLIENT_STEPS // steps // 4))
    rounds = math.ceil((noise / PART_ERROR / q / each) ** 2)
    return parts, each, max(GAME_ROUNDS, min(most, rounds))


def _most_in_part(setting: AuditSetting, parts: int) -> int:
    """Units of each part, at most, so that no integer of a secure sum wraps around.

    A part of kept / parts coordinates is rotated in windows of w coordinates. By Hoeffding's bound,
    a rotated unit has no coordinate above sqrt(2 log(2 kept / chance) / w) of its length in a
    window, but for ``WRAP_CHANCE``. The sum has room for the expected examples of a real round;
    half of it is used.
    """
    if setting.sums is None or setting.stated.whole:
        return drawn_units(setting)
    kept, expected = setting.frame.kept, setting.sums.expected_examples
    reach = math.sqrt(2 * math.log(2 * kept / WRAP_CHANCE) / window(kept))
    room = min(parts**-0.5, reach * math.sqrt(kept / parts))
    rate: float = setting.stated.sample_rate
    most: int = math.floor(expected * min(room, 1.0) / 2 / rate)
    return max(1, most)


def play(setting: AuditSetting, game: GamePlan, seed: int | None, tick: Tick) -> Game:
    """Play all rounds of a game, and record how far the outputs moved."""
    norms = game.norms.unsqueeze(1) * setting.mechanism.clip_norm
    lengths = largest_addition(setting, game.directions)
    expected_units = game.each * setting.stated.sample_rate * sum(setting.weights)

    directions = _before_rotation(game.directions) if game.on_grid else game.directions
    gradients = undo_block_weights(setting, directions * norms)
    units = Units(gradients, game.each, in_order=game.in_order)
    elsewhere = None
    if game.shared:
        outputs, elsewhere = _passes(setting, game, units, seed, tick)
    else:
        rounds = rounds_of(
            setting,
            units,
            game.name,
            seed,
            game.rounds,
            tick,
            game.gradients,
            0 if game.on_grid else None,
        )
        values = [output.grid if game.on_grid else output.values for output in rounds]
        outputs = torch.stack([value for value in values if value is not None])
    moves = (outputs.double() @ game.directions.double().T) / (lengths * expected_units)
    return Game(
        name=game.name,
        moves=moves.numpy(),
        units=game.each,
        lengths=(lengths / setting.sensitivity).numpy(),
        elsewhere=elsewhere,
    )


def _passes(
    setting: AuditSetting, game: GamePlan, units: Units, seed: int | None, tick: Tick
) -> tuple[Float[Tensor, "rounds kept"], Float[np.ndarray, "others kept"]]:
    """Outputs of the client with the units, and of the others, whose gradients are zero.

    The place of the client in the pass changes from round to round.
    """
    device = next(setting.model.parameters()).device
    silent = Units(torch.zeros(1, setting.frame.kept), len(units))
    with_units, others = [], []
    for number in range(game.rounds):
        place = number % PASS_CLIENTS
        clients = [(units if i == place else silent).to(device) for i in range(PASS_CLIENTS)]
        streams = [
            {
                purpose: stream_of(seed, purpose, game.name, number, i)
                for purpose in ("sampler", "noise")
            }
            for i in range(PASS_CLIENTS)
        ]
        outputs = outputs_of_pass(setting, clients, streams, game.gradients)
        with_units.append(outputs.pop(place))
        others += outputs
        tick()
    return torch.stack(with_units), torch.stack(others).numpy()


def counts_of(setting: AuditSetting, seed: int | None, tick: Tick) -> Count | None:
    """The noisy counts of an adaptive clip; None without one.

    The clip norm C' of the next round gives back the noisy fraction b of clients within the clip:
    C' = C exp(-rate (b - quantile)).
    """
    adaptive = setting.adaptive
    if adaptive is None:
        return None
    clip_norm = setting.mechanism.clip_norm
    direction = torch.full((1, setting.frame.kept), setting.frame.kept**-0.5)

    def counts(name: str, rows: Rows | Units, rounds: int) -> Float[np.ndarray, " rounds"]:
        outputs = rounds_of(setting, rows, name, seed, rounds, tick)
        next_norms = torch.tensor([output.clip_norm for output in outputs], dtype=torch.float64)
        fraction = adaptive.quantile - (next_norms / clip_norm).log() / adaptive.rate
        return ((fraction - 0.5) * adaptive.expected_clients).numpy()

    norms = {"count within the clip": 0.5, "count beyond the clip": LENGTH_OVER_CLIP}
    moved = {
        name: counts(name, Units(direction * norm * clip_norm, COUNTED_UNITS), GAME_ROUNDS)
        for name, norm in norms.items()
    }
    empty = counts("count of nobody", direction[:0], COUNTS_OF_NOBODY)
    return Count(empty=empty, moved=moved, units=COUNTED_UNITS)


def rounds_of_counts(setting: AuditSetting) -> int:
    """How many rounds ``counts_of`` plays, each of which it reports."""
    return 0 if setting.adaptive is None else 2 * GAME_ROUNDS + COUNTS_OF_NOBODY
