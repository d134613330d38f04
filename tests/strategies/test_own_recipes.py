"""Recipes of a user's own: what is one, what is refused, and what a process keeps of them."""

import pytest

from fedlsg import strategies
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


@pytest.fixture(autouse=True)
def forget():
    yield
    strategies.forget()


def plain(*, width: int = 2, mechanism, server):
    """Dense, with a width.

    More of it.
    """
    return Method(name="plain", mechanism=mechanism, server=server)


def test_a_recipe_that_was_given_is_one_of_them_last():
    strategies.give("mine", plain)
    assert "mine" not in strategies.names()
    assert strategies.own_settings("mine") == {"width"}
    assert strategies.takers_of("width") == ("mine",)
    assert strategies.summary("mine") == "Dense, with a width."
    made = strategies.recipe("mine", width=3, clip_norm=0.7, learning_rate=0.3)
    assert (made.mechanism.clip_norm, made.server.learning_rate) == (0.7, 0.3)
    assert dict(strategies.given()) == {"mine": plain}
    strategies.forget()
    with pytest.raises(ValueError, match="unknown method 'mine'"):
        strategies.check_name("mine")
    assert strategies.takers_of("width") == ()


def without_docstring(*, mechanism, server): ...


def without_mechanism(*, server):
    """X."""


def without_either():
    """X."""


def positional(mechanism, server, /):
    """X."""


def any_keyword(*, mechanism, server, **more):
    """X."""


def any_position(*all, mechanism, server):
    """X."""


def without_default(*, width: int, mechanism, server):
    """X."""


def shadows_mechanism(*, clip_norm: float = 1.0, mechanism, server):
    """X."""


def shadows_server(*, momentum: float = 0.5, mechanism, server):
    """X."""


def other_type(*, rank: float = 0.5, mechanism, server):
    """X."""


REFUSED = {
    "without_docstring": "has no docstring: its first sentence is what a list of methods shows",
    "without_mechanism": r"does not take mechanism: a recipe is def recipe\(\*, mechanism, "
    r"server\) -> Method",
    "without_either": "does not take mechanism and server",
    "positional": "takes mechanism.* and settings have names of their own",
    "any_keyword": r"takes \*\*more",
    "any_position": r"takes \*all",
    "without_default": "width has no default; give it one, as in width: int = 4",
    "shadows_mechanism": "declares 'clip_norm', which every method has: give it another name",
    "shadows_server": "declares 'momentum', which every method has",
    "other_type": "setting 'rank' has two different declarations: .* by method 'mine'; give both "
    "one type and range",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_recipe_is_refused_and_leaves_nothing(name):
    for before in ({}, {"mine": plain}):
        for key, build in before.items():
            strategies.give(key, build)
        with pytest.raises(ValueError, match=REFUSED[name]):
            strategies.give("mine", globals()[name])
        assert dict(strategies.given()) == before
        strategies.recipe_settings()


SETTINGS = {"clip_norm": 0.5, "noise_multiplier": 3.0, "learning_rate": 0.3}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda mechanism, server: None, "returns NoneType: expected a fedlsg.Method"),
        (
            lambda mechanism, server: Method(name="m", server=server),
            "does not keep the mechanism that it is given",
        ),
        (
            lambda mechanism, server: Method(name="m", mechanism=mechanism),
            "does not keep the server that it is given",
        ),
        (
            lambda mechanism, server: Method(
                name="m", mechanism=Mechanism(noise_share=0.1), server=server
            ),
            "does not keep the mechanism",
        ),
        (
            lambda mechanism, server: Method(
                name="m", mechanism=mechanism, server=ServerOptimizer(momentum=0.1)
            ),
            "does not keep the server",
        ),
        (lambda mechanism, server: {}["a"], "fails: KeyError: 'a'"),
    ],
)
def test_a_recipe_that_drops_what_it_is_given_is_refused(made, words):
    """The ledger is of the mechanism's noise; ``noise_share`` from a recipe would claim a secure
    sum's noise.
    """

    def mine(*, mechanism, server):
        """X."""
        return made(mechanism, server)

    strategies.give("mine", mine)
    with pytest.raises(ValueError, match=words):
        strategies.recipe("mine", noise_share=0.5, **SETTINGS)


@pytest.mark.parametrize("name", strategies.names())
def test_recipes_of_fedlsg_keep_what_they_are_given(name):
    """Control: each is called with settings that are no default."""
    strategies.recipe(
        name, **(SETTINGS if strategies.default_mechanism(name) == "dp" else {"learning_rate": 0.3})
    )
