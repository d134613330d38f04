"""The search brackets the best of made-up scores, and says when it lies at the edge. The axes it searches along."""

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.setting import Declared, Setting
from simulations.settings.settings import all_settings
from simulations.tune.axes import REACH, Axis, make_axes, make_axis
from simulations.tune.notes import edge_notes
from simulations.tune.search import Found, Point, edges, fewest_points, search

RATE = all_settings()["learning_rate"]


def grid(start: int = 6, size: int = 13, name: str = "rate") -> Axis:
    return Axis(name=name, values=tuple(2.0**k for k in range(size)), start=start, listed=False)


def listed(*values: object, start: int = 0, name: str = "rank") -> Axis:
    return Axis(name=name, values=values, start=start, listed=True)


def climb(axes: Sequence[Axis], objective: Callable[..., float]) -> tuple[Found, list[list[Point]]]:
    asked: list[list[Point]] = []

    def measure(points: Sequence[Point]) -> dict[Point, float]:
        asked.append(list(points))
        return {point: objective(*point) for point in points}

    return search(axes, measure), asked


@pytest.mark.parametrize("peak", range(13))
def test_a_single_peak_is_found_from_anywhere_and_bracketed(peak):
    for start in range(13):
        found, asked = climb([grid(start)], lambda at: -abs(at - peak))
        assert found.best == (peak,)
        assert {(at,) for at in (peak - 1, peak, peak + 1) if 0 <= at < 13} <= found.scores.keys()
        points = [point for batch in asked for point in batch]
        assert len(points) == len(set(points))  # no point is measured twice
        assert len(points) <= abs(peak - start) + 3
        assert edges([grid(start)], found.best) == ({"rate": "lowest" if peak == 0 else "highest"} if peak in (0, 12)
                                                   else {})  # fmt: skip


@given(st.lists(st.lists(st.floats(-1, 1), min_size=5, max_size=5), min_size=4, max_size=4), st.integers(0, 3))
def test_no_neighbour_of_the_best_is_better(scores, start):
    axes = [Axis(name="a", values=(1.0, 2.0, 4.0, 8.0), start=start, listed=False), listed(1, 2, 3, 4, 5, start=2)]
    found, _ = climb(axes, lambda i, j: scores[i][j])
    i, j = found.best
    assert all(scores[k][j] <= scores[i][j] for k in (i - 1, i + 1) if 0 <= k < 4)
    assert max(scores[i]) == scores[i][j]  # every listed value was tried
    assert {(i, k) for k in range(5)} <= found.scores.keys()


def test_the_axes_are_searched_again_after_one_has_moved():
    found, _ = climb([grid(), grid(name="refresh")], lambda i, j: -0.5 * (i - j) ** 2 - (j - 9) ** 2)
    assert found.best == (9, 9)
    assert (6, 7) in found.scores  # on the way: the first axis was the best at 6, and moved after the second


def test_a_clip_norm_moves_against_the_learning_rate():
    """Where everything is clipped the score depends on rate x C, and weakly on C: a ridge i + j."""

    def ridge(i: int, j: int) -> float:
        return -abs(i + j - 12) - 0.1 * abs(j - 9)

    found, _ = climb([grid(name="learning_rate"), grid(name="clip_norm")], ridge)
    assert found.best == (3, 9)
    # negative control: steps along one axis at a time stay where they are
    assert climb([grid(name="learning_rate"), grid(name="other")], ridge)[0].best == (6, 6)


def test_a_plateau_keeps_the_start_and_a_failed_trial_is_the_worst():
    assert climb([grid()], lambda at: 0.5)[0].best == (6,)
    assert climb([grid()], lambda at: -math.inf if at > 6 else float(at))[0].best == (6,)
    assert climb([grid()], lambda at: -math.inf)[0].best == (6,)


def test_the_fewest_points_are_those_of_a_start_that_is_best():
    axes = [grid(), listed(4, 8, 16), grid(0, name="clip")]
    found, _ = climb(axes, lambda *at: -sum(abs(a - b) for a, b in zip(at, (6, 0, 0), strict=True)))
    assert len(found.scores) == fewest_points(axes) == 1 + 2 + 2 + 1


def test_a_search_on_kept_scores_asks_the_same():
    def objective(i: int, j: int) -> float:
        return -((i - 9) ** 2) - (j - 1) ** 2

    axes = [grid(), listed(4, 8, 16)]
    assert climb(axes, objective)[1] == climb(axes, objective)[1]


# --- axes


def test_a_grid_is_powers_of_two_around_the_value_in_use():
    (axis,) = make_axes(["learning-rate"], "dpsgd", {"learning_rate": 0.4})
    assert axis.values == tuple(0.4 * 2.0**k for k in range(-REACH, REACH + 1))
    assert (axis.values[axis.start], axis.listed) == (0.4, False)
    whole = make_axis(all_settings()["rank"], None, 6)
    assert whole.values[:5] == (1, 2, 3, 6, 12)  # 1.5 and 3 / 4 round to 2 and 1
    share = make_axis(all_settings()["sparsity"], None, 0.5)
    assert share.values[-1] == 0.5  # 1 is no share
    assert edge_notes([share], (len(share.values) - 1,), {"sparsity": "highest"})[0].endswith("on this grid.")


def test_a_value_that_no_setting_goes_beyond_asks_for_no_other():
    refreshes = make_axis(all_settings()["refresh_rounds"], ["1", "2"], 1)
    lowest, highest = (
        edge_notes([refreshes], (at,), {refreshes.name: side}) for at, side in ((0, "lowest"), (1, "highest"))
    )
    assert lowest == ["The best refresh_rounds, 1, is at the edge: it is the lowest that the setting takes."]
    assert highest[0].endswith("A higher one may be better: give one with --vary refresh_rounds=...")


def test_values_may_be_given_for_any_setting():
    ranks, carrier, sizes = make_axes(["rank=16,4, 8", "importance", "batch_size=10,20"], "lsg", {"rank": 8})
    assert (ranks.values, ranks.start, ranks.listed) == ((4, 8, 16), 1, True)
    assert carrier.values == all_settings()["importance"].choices
    assert sizes.values == (10, 20)


def test_the_usual_axes_are_those_that_a_method_has():
    values = {"learning_rate": 0.5, "clip_norm": 1.0, "rank": 4, "refresh": None}
    assert [axis.name for axis in make_axes([], "lsg", values)] == ["learning_rate", "clip_norm", "rank"]
    assert [axis.name for axis in make_axes([], "dpsgd", values)] == ["learning_rate", "clip_norm"]


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("learnig_rate", r"unknown setting of dpsgd to vary 'learnig_rate'; did you mean 'learning_rate'\?"),
        ("rank", r"unknown setting of dpsgd to vary 'rank'"),
        ("epsilon=1,2", r"--vary epsilon: it changes what is measured or how private it is"),
        ("noise_multiplier", r"--vary noise_multiplier: it changes"),
        ("seed", r"--vary seed: it changes"),
        ("learning_rate=", r"expected values after --vary learning_rate="),
        ("learning_rate=fast", r"expected a number \(float\) for learning_rate, got 'fast'"),
        ("clip_norm=-1", r"expected 1e-30 <= clip_norm=-1.0"),
        ("momentum", r"--vary momentum: 0.0 is no number to double and halve, give values: --vary momentum=A,B"),
        ("model", r"--vary model: 'mlp' is no number to double"),
    ],
)
def test_a_wrong_axis_is_refused_by_name(vary, words):
    with pytest.raises(ValueError, match=words):
        make_axes([vary], "dpsgd", {"learning_rate": 0.4, "momentum": 0.0, "model": "mlp"})
    with pytest.raises(ValueError, match="--vary learning_rate is given twice"):
        make_axes(["learning_rate", "learning-rate=1"], "dpsgd", {"learning_rate": 0.4})


def test_the_edge_is_said_with_what_to_do():
    axes = [grid(), listed(4, 8, name="rank"), make_axis(Declared(name="k", kind=int, setting=Setting()), None, 2)]
    sides = edges(axes, (12, 0, 0))
    assert sides == {"rate": "highest", "rank": "lowest", "k": "lowest"}
    rate, rank, least = edge_notes(axes, (12, 0, 0), sides)
    assert rate == (
        "The best rate, 4096, is at the edge: it is the highest of the grid. A higher one may be better: start from "
        "here with -c rate=..."
    )
    assert "the lowest of the values given. A lower one may be better: give one with --vary rank=..." in rank
    assert "the lowest that the setting takes on this grid" in least
    assert edges(axes, (5, 1, 3)) == {"rank": "highest"}
    assert edges([listed("a", "b")], (0,)) == {}  # words have no order
