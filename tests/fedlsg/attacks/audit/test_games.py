"""Plants that only a game of its own finds: one norm, one part, one path, rounds taken together."""

from dataclasses import replace

import numpy as np
import pytest

from fedlsg.attacks.audit.checks.all_checks import check_recording
from fedlsg.attacks.audit.checks.check import UnitClaim
from fedlsg.attacks.audit.checks.count_checks import count_checks
from fedlsg.attacks.audit.checks.noise_checks import pass_checks
from fedlsg.attacks.audit.checks.unit_checks import check_fresh_draws, game_checks
from fedlsg.attacks.audit.played.coverage import not_covered
from fedlsg.attacks.audit.played.games import Game, counts_of, games_of, play
from fedlsg.attacks.audit.played.plants import planted, refuse_plant
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.attacks.audit.played.unit_mode import record
from fedlsg.privacy import clipped_sum
from fedlsg.training.client_level import AdaptiveClip
from tests.fedlsg.support.audit_setting import MODES, OF_GAMES, in_mode, setting


def ghosts() -> AuditSetting:
    """Dense, with a first weight that is large enough for ghost clipping."""
    return setting("dpsgd", rounds=2, hidden=256)


def adaptive() -> AuditSetting:
    made = in_mode("server", setting(rounds=2))
    clip = AdaptiveClip(quantile=0.5, rate=0.2, count_noise=2.0, expected_clients=15.0)
    return replace(made, adaptive=clip)


def in_named(mode: str) -> AuditSetting:
    own = {"ghosts": ghosts, "adaptive": adaptive}
    return own[mode]() if mode in own else in_mode(mode, setting(rounds=2))


def failed(made: AuditSetting, game: str, plant: str | None = None, seed: int = 0) -> set[str]:
    """The checks of one game that fail."""
    with planted(plant, clients=made.stated.members):
        return accused(made, played(made, game, seed))


def played(made: AuditSetting, game: str, seed: int = 0) -> Game:
    """What is seen of one game."""
    (chosen,) = (one for one in games_of(made, seed) if one.name == game)
    return play(made, chosen, seed, lambda: None)


def accused(made: AuditSetting, seen: Game) -> set[str]:
    """The checks of what was seen that fail."""
    claim = UnitClaim(
        sample_rate=made.stated.sample_rate,
        noise=made.noise_std / made.sensitivity,
        weights=made.weights,
    )
    found = [*game_checks(seen, claim), *pass_checks([seen], made)]
    return {check.name for check in found if not check.passed}


CASES = [
    ("client", "rounded-before-noise", "few units"),
    ("client", "last-row-twice", "places of a batch"),
    ("client", "clip-from-2c-on", "norms"),
    ("secure, clients", "clip-from-2c-on", "norm 1.9 C"),
    ("client", "clip-by-mean-norm", "norms"),
    ("client", "part-doubled", "parts"),
    ("secure", "rotated-part-doubled", "parts of the grid"),
    ("client", "batch-reused", "parts"),
    ("client", "batches-in-order", "parts"),
    ("client", "one-draw-for-all", "parts"),
    ("client", "no-clip-in-passes", "small clients of a pass"),
    ("client", "no-clip-in-passes", "clients of a pass"),
    ("client", "neighbour-in-pass", "small clients of a pass"),
    ("ghosts", "ghost-norms-halved", "ghost gradients, 1 position"),
    ("ghosts", "ghost-norms-halved", "ghost gradients, 2 positions"),
    ("ghosts", "ghosts-unclipped", "ghost gradients, 1 position"),
]


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_row_that_counts_twice_is_found_in_each_place(place, monkeypatch):
    """The direction that is moved too far says which."""
    at = {"first": lambda n: 0, "middle": lambda n: n // 2, "last": lambda n: n - 1}[place]

    def twice(gradients, mechanism, **options):
        row = slice(at(len(gradients[0])), at(len(gradients[0])) + 1)
        total = clipped_sum(gradients, mechanism, **options)
        return total + clipped_sum([block[row] for block in gradients], mechanism, **options)

    made = in_named("client")
    monkeypatch.setattr("fedlsg.training.client_round.clipped_sum", twice)
    seen = played(made, "places of a batch")
    moved = seen.moves.mean(0)
    assert int(moved.argmax()) == ["first", "middle", "last"].index(place)
    assert moved.max() > 1.2
    assert accused(made, seen) == {"sensitivity, places of a batch"}


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("mode", "plant", "game"), CASES)
def test_a_plant_of_a_game_is_found(mode, plant, game):
    made = in_named(mode)
    refuse_plant(plant, made)
    assert failed(made, game, plant)


@pytest.mark.parametrize(
    ("mode", "game"), dict.fromkeys((mode, game) for mode, _, game in CASES if mode != "secure")
)
def test_a_game_of_correct_code_accuses_nobody(mode, game):
    assert not failed(in_named(mode), game)


def test_a_client_of_a_pass_has_its_share_of_the_noise_of_a_sum():
    """Correct code of trust=aggregate was accused of less noise than the sum needs. The control
    has less than its share.
    """
    made = in_mode("aggregate", setting(rounds=2))
    seen = played(made, "small clients of a pass")
    assert not accused(made, seen)
    less = replace(seen, elsewhere=0.9 * seen.elsewhere)
    assert accused(made, less) == {"noise deviation, all, next to small clients of a pass"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*MODES, "ghosts", "adaptive"])
def test_all_games_of_correct_code_accuse_nobody(mode):
    made = in_named(mode)
    for seed in range(5):
        seen = record(made, 10, seed=seed)
        assert [check.name for check in check_recording(seen, made) if not check.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("plant", OF_GAMES)
def test_a_whole_audit_finds_every_plant(plant):
    mode = next((mode for mode, own, _ in CASES if own == plant), "adaptive")
    made = in_named(mode)
    with planted(plant, clients=made.stated.members):
        seen = record(made, 10, seed=0)
    assert any(not check.passed for check in check_recording(seen, made))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "plant"),
    [
        ("client", "batch-reused"),
        ("client", "clip-from-2c-on"),
        ("client", "no-clip-in-passes"),
        ("ghosts", "ghost-norms-halved"),
    ],
)
def test_without_games_it_is_missed(mode, plant):
    """Why there are games: the same checks without them pass."""
    made = in_named(mode)
    with planted(plant, clients=made.stated.members):
        seen = record(made, 10, seed=0, plans=())
    assert [check.name for check in check_recording(seen, made) if not check.passed] == []


@pytest.mark.thinned(1)
@pytest.mark.parametrize("plant", [None, "count-noise-left-out", "count-doubled"])
def test_the_count_of_an_adaptive_clip_is_a_release_of_its_own(plant):
    made = adaptive()
    refuse_plant(plant, made)
    with planted(plant):
        seen = counts_of(made, 0, lambda: None)
    rows = np.random.default_rng(0).normal(size=(64, 1000)) * made.noise_std * 1.04
    found = {c.name for c in count_checks({"all": rows}, seen, made) if not c.passed}
    wrong = {"count-noise-left-out": "noise of the count", "count-doubled": "sensitivity, count"}
    assert any(name.startswith(wrong[plant]) for name in found) if plant else not found


def drawn(rng: np.random.Generator, q: float, units: int, rounds: int, noise: float) -> Game:
    """A game of a true claim."""
    taken = rng.binomial(units, q, size=(rounds, 200)) + rng.normal(size=(rounds, 200)) * noise
    return Game(name="parts", moves=taken / units / q, units=units, lengths=np.ones(200))


@pytest.mark.parametrize(("q", "units", "noise"), [(0.5, 8, 1.0), (0.02, 300, 3.0), (0.9, 5, 0.1)])
def test_fresh_draws_are_accused_as_rarely_as_is_said(q, units, noise):
    """In 300 audits of a true claim nobody is accused."""
    rng = np.random.default_rng(0)
    played = [drawn(rng, q, units, 16, noise) for _ in range(300)]
    variance = np.full(200, (noise / units / q) ** 2)
    claim = UnitClaim(sample_rate=q, noise=noise)
    checks = [check_fresh_draws(game, claim, variance) for game in played]
    assert all(check.passed for check in checks)


def test_what_ran_is_counted_and_what_did_not_is_named():
    made = in_mode("client", setting(rounds=2))
    wanted = [one for one in games_of(made, 0) if one.name == "small clients of a pass"]
    without, within = (record(made, 10, seed=0, plans=chosen).paths for chosen in ((), wanted))
    assert without["clip and sum"] > 0
    assert "clip and sums of a shared pass" in not_covered(made, without)
    assert not_covered(made, within) == ("backward pass of each example",)


def test_paths_that_no_game_plays_are_named():
    made = replace(in_mode("client", setting(rounds=2)), shuffled=True, prunes=True)
    named = not_covered(made, record(made, 10, seed=0, plans=()).paths)
    assert {"shuffled batch", "pruning by saliencies"} <= set(named)
