"""Named presets: complete, of the known noise, buildable by their recipes, and under whatever a
user gives.
"""

from dataclasses import replace

import pytest

from docs._sphinx.settings import presets_page
from fedlsg.accounting.certified import epsilon as epsilon_of
from fedlsg.simulations.settings.published import Published, find, presets
from fedlsg.simulations.settings.resolve import build_method
from fedlsg.simulations.settings.settings import Settings, values_of
from fedlsg.simulations.settings.with_preset import resolve
from tests.places import REPOSITORY

ALL = presets()
ROOT = REPOSITORY


def settings_of(name: str, **given: object) -> Settings:
    """Settings of a preset with a user's own over it."""
    return resolve({"preset": name, **given})


@pytest.mark.slow
def test_presets_parse_and_build_their_methods():
    for preset in ALL:
        settings = settings_of(preset.name)
        assert settings.from_preset == preset.name
        assert settings.preset is None
        assert values_of(settings).items() >= preset.settings.items(), preset.name
        method = build_method(settings)
        assert method.name == settings.method, preset.name
        assert method.mechanism.private == (settings.epsilon is not None), preset.name
        parts = (
            method.carrier.rank,
            method.mask.sparsity,
            method.server.learning_rate,
            method.mechanism.clip_norm,
        )
        wanted = [
            settings.parameters.get(name)
            for name in ("rank", "sparsity", "learning_rate", "clip_norm")
        ]
        assert all(w is None or part == w for part, w in zip(parts, wanted, strict=True)), (
            preset.name
        )


KNOWN = {
    "lsg-cifar10-eps3.3": 2.6699,
    "rgp-cifar10-eps3.3": 2.6699,
    "lsg-cifar10-eps6.8": 1.5474,
    "lsg-sst2-eps3.3": 1.2475,
    "lsg-qqp-eps3.4": 0.8087,
}


def spent(preset: Published, noise_multiplier: float) -> float:
    """Epsilon of a preset's whole run at a noise multiplier (PLD alone: half the time)."""
    s = preset.settings
    return epsilon_of(
        sample_rate=s["sample_rate"],
        noise_multiplier=noise_multiplier,
        steps=s["rounds"],
        delta=s["delta"],
        accountants=("pld",),
    ).upper


def brackets(preset: Published, sigma: float) -> bool:
    """Whether the multiplier that spends exactly the preset's epsilon is within 0.2 % of
    ``sigma``.
    """
    return (
        spent(preset, sigma * 1.002) <= preset.settings["epsilon"] <= spent(preset, sigma * 0.998)
    )


@pytest.mark.parametrize(("name", "sigma"), KNOWN.items())
def test_noise_agrees_with_the_known_multipliers(name, sigma):
    assert brackets(find(name), sigma)


@pytest.mark.parametrize(
    ("given", "kept", "gone"),
    [
        ({"rank": 2, "rounds": 10}, {"rank": 2, "rounds": 10, "epsilon": 3.3}, ()),
        (
            {"method": "dpsgd"},
            {"method": "dpsgd", "epsilon": 3.3},
            ("rank", "sparsity", "power_steps", "direction"),
        ),
        ({"method": "rgp"}, {"rank": 16}, ("sparsity", "direction")),
        ({"method": "sgd"}, {"rounds": 10_000}, ("epsilon", "rank")),
        ({"mechanism": "none"}, {"rank": 16}, ("epsilon",)),
        ({"noise_multiplier": 2.0}, {"noise_multiplier": 2.0}, ("epsilon",)),
        ({"batch_size": 100}, {"batch_size": 100}, ("sample_rate",)),
        ({"epochs": 10.0}, {"epochs": 10.0}, ("rounds",)),
        ({"optimizer": "adam"}, {"optimizer": "adam"}, ("momentum",)),
        ({"schedule": "constant"}, {"schedule": "constant"}, ("final_learning_rate",)),
        ({"workload": "digits", "model": "mlp"}, {"workload": "digits", "model": "mlp"}, ()),
    ],
)
def test_given_settings_win_and_drop_what_they_make_void(given, kept, gone):
    settings = settings_of("lsg-cifar10-eps3.3", **given)
    assert values_of(settings).items() >= kept.items()
    assert not values_of(settings).keys() & set(gone)
    build_method(settings)


def test_the_page_is_current():
    page = (ROOT / "docs" / "presets.md").read_text()
    assert page == presets_page(ALL), "write it again: python -m docs._sphinx.settings"
    assert page != presets_page((replace(ALL[0], accuracy=1.0), *ALL[1:]))


PAPERS_NOISE = {
    ("rs", 3): (1.5591, 28.2),
    ("rs", 1): (3.7722, 9.1),
    ("dpsgd", 3): (1.4549, 27.4),
    ("dpsgd", 1): (3.4615, 9.0),
}
"""By method and epsilon: the noise multiplier of the Poisson bound, and what it is proved to cost
in shuffled batches, rounded up (``fedlsg calibrate --epoch-batches 50``); the presets' notes name
both."""


@pytest.mark.parametrize(
    ("method", "epsilon"),
    [c if n == 0 else pytest.param(*c, marks=pytest.mark.slow) for n, c in enumerate(PAPERS_NOISE)],
)
def test_shuffled_rows_need_more_noise_than_the_paper_has(method, epsilon):
    preset = find(
        f"{method}-cifar10-dp-cnn-eps{epsilon}{'-p0.9' if method == 'rs' else ''}-shuffle"
    )
    assert (preset.epochs, preset.batch, preset.accuracy) == (
        48 if method == "rs" else 40,
        1000,
        None,
    )
    sigma, proved = PAPERS_NOISE[method, epsilon]
    assert f"noise_multiplier={sigma}, which this bound gives epsilon {proved}." in preset.notes[0]
    steps, one = int(preset.settings["rounds"]), {"noise_multiplier": sigma, "delta": 1e-5}
    poisson = epsilon_of(sample_rate=0.02, steps=steps, **one).upper
    assert epsilon * 0.994 <= poisson <= epsilon * 1.001, (
        "these multipliers were calibrated to prv's upper end"
    )
    assert epsilon_of(sample_rate=1.0, steps=int(preset.epochs), **one).upper == pytest.approx(
        proved, rel=6e-3, abs=0.1
    )
    assert epsilon_of(sample_rate=1.0, steps=int(preset.epochs), **one).upper <= proved
