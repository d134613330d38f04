"""Presets of RGP as its authors' code runs it: each for one round at small size, and what their
settings make of a model.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedlsg.gradients import trainable
from fedlsg.simulations.engines import local
from fedlsg.simulations.planning.base.disclosure import is_covered
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.settings.published import find, presets
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.made_images import encode, pixels_of, write_shard
from tests.simulations.support.made_texts import make_bert, write_pairs, write_sst2
from tests.simulations.support.runs import ignore

AUTHORS = [preset.name for preset in presets() if preset.name.endswith("-authors")]
SMALL = {"rounds": 1, "sample_rate": 0.5, "noise_multiplier": 1.0, "evaluate_every": 1}
PAIRS = {
    "mnli": ("premise", "hypothesis"),
    "qqp": ("question1", "question2"),
    "qnli": ("question", "sentence"),
}


def write_images(root: Path) -> None:
    """CIFAR-10, and SVHN with ``extra``: a few images in every split."""
    for place, splits, image in (
        ("cifar10/plain_text", {"train": 12, "test": 4}, "img"),
        ("svhn/cropped_digits", {"train": 8, "extra": 5, "test": 4}, "image"),
    ):
        folder = root / place
        folder.mkdir(parents=True)
        for split, count in splits.items():
            write_shard(
                folder / f"{split}-00000-of-00001.parquet",
                [encode(pixels) for pixels in pixels_of(count, count)],
                [row % 10 for row in range(count)],
                columns=(image, "label"),
            )


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("transformers", reason="text models need the text extra")
    root = tmp_path_factory.mktemp("papers")
    write_images(root / "data")
    write_sst2(root / "data", train=12, validation=4)
    for task, names in PAIRS.items():
        tests = (
            ("validation_matched", "validation_mismatched") if task == "mnli" else ("validation",)
        )
        splits = {"train": 12, **dict.fromkeys(tests, 4)}
        write_pairs(root / "data", task, names, splits, 3 if task == "mnli" else 2)
    make_bert(root / "bert", layers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDLSG_DATA", raising=False)
        patch.setenv("FEDLSG_CACHE", str(root / "cache"))
        yield root


def plan_of(name: str, mirror: Path, **changes: object) -> Plan:
    """The plan of a preset on the made data, with a small model."""
    bert = str(find(name).settings["workload"]).startswith("glue")
    small = (
        {"model": str(mirror / "bert"), "max_length": 16} if bert else {"model": "cnn", "rank": 2}
    )
    given = {"preset": name, "data_dir": str(mirror / "data"), **SMALL, **small, **changes}
    return make_plan(resolve(given))


FAST = ("rgp-cifar10-eps8-r16-authors", "rgp-sst2-bert-eps8-r1-authors")
"""One of each kind; the others differ in data, epochs and epsilon."""


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in AUTHORS]
)
def test_it_runs_a_round(name, mirror, tmp_path):
    plan = plan_of(name, mirror)
    directory: RunDir = create(str(tmp_path / name), plan.settings, private=not is_covered(plan))
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    directory.write_config(plan.settings)
    summary = local.run(plan, directory, on_round=ignore, page=False)
    assert (summary["rounds"], summary["method"]) == (1, "rgp")


def test_each_private_row_of_the_paper_has_one():
    """CIFAR-10 and SVHN at four epsilons, four GLUE tasks at five."""
    of_paper = {
        preset.name.replace("svhn-", "svhn-extra-")
        for preset in presets()
        if preset.paper.startswith("RGP") and preset.settings["method"] == "rgp"
        if "epsilon" in preset.settings and not preset.name.endswith("-authors")
    }
    assert {name.removesuffix("-authors") for name in AUTHORS} == of_paper


def test_images_have_the_classifier_divided_by_100(mirror):
    plan = plan_of("rgp-cifar10-eps8-authors", mirror)
    blocks = plan.initial.public().frame(1, updates=0).blocks
    weights = {block.parameter.partition(".")[0]: block.weight for block in blocks}
    assert weights.pop("classifier") == 0.01
    assert set(weights.values()) == {1.0}
    assert plan.method.carrier.history == "normalized"


@pytest.mark.slow
def test_svhn_has_extra(mirror):
    assert len(plan_of("rgp-svhn-eps8-authors", mirror).workload.train) == 8 + 5
    assert find("rgp-svhn-eps8-authors").examples == 73_257 + 531_131


@pytest.mark.slow
def test_bert_trains_carried_weights_and_the_head_with_dropout(mirror):
    plan = plan_of("rgp-sst2-bert-eps8-authors", mirror)
    model = plan.initial.model()
    carried = plan.initial.public().carried
    assert set(trainable(model)) == {*carried, "classifier.weight", "classifier.bias"}
    rates = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
    assert rates == {0.1}


@pytest.mark.parametrize(("given", "classifier"), [(2.0, 0.02), (1.0, 0.01)])
def test_a_learning_rate_of_the_user_keeps_the_ratio_of_the_groups(given, classifier):
    settings = resolve({"preset": "rgp-cifar10-eps8-authors", "learning_rate": given})
    assert settings.parameters["classifier_learning_rate"] == pytest.approx(classifier)
    assert settings.parameters["norms_learning_rate"] == given
