"""Named presets: complete, of the known noise, buildable by their recipes, and under whatever a user gives."""

from dataclasses import replace

import pytest

from fedlsg.accounting.bounds import epsilon as epsilon_of
from simulations.settings.published import Published, find, presets, resolve
from simulations.settings.published.show import as_markdown
from simulations.settings.resolve import build_method
from simulations.settings.settings import Settings, from_mapping, values_of
from tests.places import REPOSITORY

ALL = presets()
ROOT = REPOSITORY


def settings_of(name: str, **given: object) -> Settings:
    """Settings of a preset with a user's own over it."""
    return from_mapping(resolve({"preset": name, **given}))


def test_presets_parse_and_build_their_methods():
    for preset in ALL:
        settings = settings_of(preset.name)
        assert settings.from_preset == preset.name
        assert settings.preset is None
        assert values_of(settings).items() >= preset.settings.items(), preset.name
        method = build_method(settings)
        assert method.name == settings.method, preset.name
        assert method.mechanism.private == (settings.epsilon is not None), preset.name
        parts = (method.carrier.rank, method.mask.sparsity, method.server.learning_rate, method.mechanism.clip_norm)
        wanted = [settings.parameters.get(name) for name in ("rank", "sparsity", "learning_rate", "clip_norm")]
        assert all(w is None or part == w for part, w in zip(parts, wanted, strict=True)), preset.name


def rounds_off(preset: Published, epochs: float) -> float:
    """Rounds beyond those of ``epochs`` passes of this batch."""
    return int(preset.settings["rounds"]) - epochs * preset.examples / preset.batch


def test_rounds_and_rate_are_the_papers_epochs_and_batch():
    for preset in ALL:
        s = preset.settings
        epochs = next((n for n in (10, 20, 40, 48, 50, 60, 100, 200) if abs(rounds_off(preset, n)) <= 0.5), None)
        assert epochs is not None or s["rounds"] in (875, 1125, 1593, 1687, 1843, 2468, 2346, 250), (
            preset.name
        )  # De et al. count updates; ImageNet has 30 epochs
        assert preset.batch in (32, 350, 500, 1000, 2000, 2048, 4096, 8192, 16384), preset.name
        shuffled = s.get("sampling") == "shuffle"
        assert (s["batch_size"] == 1000) if shuffled else (s["sample_rate"] == preset.batch / preset.examples), (
            preset.name
        )
        assert (s["clients"], s["local_steps"]) == (1, 1), preset.name


HARMLESS_GAPS = {"model", "clients_per_round", "min_survivors", "microbatch_size", "local_momentum", "alpha"}
HARMLESS_GAPS |= {"shards_per_client"}


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
        sample_rate=s["sample_rate"], noise_multiplier=noise_multiplier, steps=s["rounds"], delta=s["delta"],
        accountants=("pld",),
    ).upper  # fmt: skip


def brackets(preset: Published, sigma: float) -> bool:
    """Whether the multiplier that spends exactly the preset's epsilon is within 0.2 % of ``sigma``."""
    return spent(preset, sigma * 1.002) <= preset.settings["epsilon"] <= spent(preset, sigma * 0.998)


@pytest.mark.parametrize(("name", "sigma"), KNOWN.items())
def test_noise_agrees_with_the_known_multipliers(name, sigma):
    assert brackets(find(name), sigma)


def test_the_papers_numbers_by_hand():
    cells = {
        "lsg-cifar10-eps3.3": 58.1, "rgp-cifar10-eps6.8": 61.9, "sparse-dpsgd-cifar10-eps0.8": 23.4,
        "dpsgd-cifar10-eps1.7": 35.1, "lsg-sst2-eps3.3-r4-p0.5": 90.4, "lsg-sst2-eps3.3-r8-p0.5": None,
        "lsg-qqp-eps3.4-r2-p0.3": 83.9, "sparse-dpsgd-qqp-eps3.4-p0.3": 71.7, "dpsgd-sst2-eps3.3": 81.0,
        "rgp-cifar10-eps8": 63.4, "rgp-random-cifar10-eps8": 51.0, "dp-powersgd-cifar10-eps8": 57.1,
        "dpsgd-cifar10-eps2": 37.4, "rgp-svhn-eps8": 94.2, "rgp-mnli-bert-eps8": 78.55, "sgd-cifar10-nonprivate": 93.3,
        "sgd-sst2-nonprivate": 94.8, "sgd-qnli-nonprivate": 92.8, "sgd-qqp-nonprivate": 91.9,
        "sgd-mnli-nonprivate": 87.6, "rgp-random-mnli-bert-eps6": None, "dpsgd-sst2-bert-eps1": None,
        "lsg-sst2-eps2-r4-p0.7": 88.7, "lora-sst2-eps2-r32": 91.2, "lsg-lora-sst2-eps2-r8-p0.7": 50.9,
        "rs-cifar10-eps3": 65.8, "rs-cifar10-eps1": 57.7, "dpsgd-cifar10-h-cnn-eps1": 63.2,
        "dp-ssgd-cifar10-eps1": 57.45, "dpsgd-cifar10-wrn-16-4-eps4": 68.58, "dp-ssgd-cifar10-wrn-28-10-eps1": 94.84,
        "de2022-wrn-40-4-eps8": 81.4,
    }  # fmt: skip
    assert {name: find(name).accuracy for name in cells} == cells


@pytest.mark.parametrize(
    ("given", "kept", "gone"),
    [
        ({"rank": 2, "rounds": 10}, {"rank": 2, "rounds": 10, "epsilon": 3.3}, ()),
        ({"method": "dpsgd"}, {"method": "dpsgd", "epsilon": 3.3}, ("rank", "sparsity", "power_steps", "direction")),
        ({"method": "rgp"}, {"rank": 16}, ("sparsity", "direction")),
        ({"method": "sgd"}, {"rounds": 10_000}, ("epsilon", "rank")),
        ({"mechanism": "none"}, {"rank": 16}, ("epsilon",)),
        ({"noise_multiplier": 2.0}, {"noise_multiplier": 2.0}, ("epsilon",)),
        ({"batch_size": 100}, {"batch_size": 100}, ("sample_rate",)),
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
    assert page == as_markdown(ALL), "write it again: fedlsg list presets --markdown > docs/presets.md"
    assert page != as_markdown((replace(ALL[0], accuracy=1.0), *ALL[1:]))
