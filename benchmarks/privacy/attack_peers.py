"""The attacks of LeakPro and breaching on the same numbers as those of fedlsg.

    python -m benchmarks.privacy.attack_peers --leakpro LEAKPRO --breaching BREACHING

LEAKPRO and BREACHING: checkouts of aidotse/LeakPro and JonasGeiping/breaching. What runs is their
own code of the scores (``AttackLiRA.run_attack``, ``AttackRMIA``) and of the labels
(``_recover_label_information``). What loads data and models in these packages is replaced: they
want models and data sets of their own forms.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from fedlsg.attacks.inversion.linear import label_counts
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.membership.answers import Answers, PublicAnswers, Scores
from fedlsg.attacks.membership.scores import membership_attacks
from fedlsg.attacks.membership.scores import rmia as rmia_file
from fedlsg.attacks.observation import Knowledge
from fedlsg.attacks.roc import roc

MODELS, CANDIDATES, PUBLIC = 16, 600, 300
STRATEGIES = ("iDLG", "analytic", "yin", "wainakh-simple", "bias-corrected")


@contextmanager
def stood_in(*names: str) -> Iterator[None]:
    """Modules of these names that have every attribute, while code that imports them is read."""
    before = {name: sys.modules.get(name) for name in names}
    for name in names:
        sys.modules[name] = _StandIn(name)
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


class _StandIn(ModuleType):
    """A module with every attribute: a class to inherit from, or a function for anything."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return (
            type(name, (), {"from_full_scores": MagicMock()}) if name[:1].isupper() else MagicMock()
        )


def read(path: Path, package: str, *imported: str) -> dict[str, Any]:
    """The names that a file of another package defines."""
    found: dict[str, Any] = {"__name__": f"{package}.read", "__package__": package}
    with stood_in(*imported):
        exec(compile(path.read_text(), str(path), "exec"), found)
    return found


def leakpro(folder: Path, name: str, known: Answers) -> Scores:
    """Scores of LeakPro's LiRA or RMIA, online or offline, without its split into members."""
    kind, mode = name.split()
    here = folder / "leakpro" / "attacks" / "mia_attacks"
    modules = (
        "attacks.mia_attacks.abstract_mia",
        "attacks.utils.shadow_model_handler",
        "attacks.utils.utils",
        "input_handler.mia_handler",
        "reporting.mia_result",
        "signals.signal",
        "signals.signal_extractor",
        "utils.import_helper",
        "utils.logger",
    )
    every = ("leakpro", *(f"leakpro.{module}" for module in modules))
    names = read(here / f"{kind.lower()}.py", "leakpro", *every)
    attack: Any = object.__new__(names[f"Attack{kind}"])
    attack.__dict__.update(
        online=mode == "online",
        out_indices=~known.inside,
        num_shadow_models=len(known.shadows),
        audit_dataset={"in_members": np.arange(len(known.target)), "out_members": np.arange(0)},
        configs=MagicMock(),
    )
    if kind == "LiRA":
        attack.__dict__.update(
            shadow_models_logits=known.shadows,
            target_logits=known.target,
            var_calculation="carlini",
            fix_var_threshold=32,
        )
        attack.run_attack()
        return np.asarray(attack.in_member_signals[:, 0])
    assert known.public is not None
    names["softmax_logits"] = lambda phi, temperature: np.stack([1 / (1 + np.exp(-phi))], -1)
    z = names["softmax_logits"](known.public.shadows, 1.0)[..., 0].mean(0)
    a = rmia_file.A
    p_z = z if attack.online else 0.5 * ((a + 1) * z + (1 - a))  # lines of its prepare_attack
    target_z = names["softmax_logits"](known.public.target, 1.0)[..., 0]
    attack.__dict__.update(
        ground_truth_indices=np.zeros(len(known.target), int),
        logits_theta=known.target,
        logits_shadow_models=list(known.shadows),
        temperature=1.0,
        epsilon=1e-6,
        gamma=rmia_file.GAMMA,
        offline_a=a,
        ratio_z=target_z[None] / (p_z + 1e-6),
    )
    attack._run_attack()
    return np.asarray(attack.in_member_signals[:, 0])


def world(seed: int = 0, shift: float = 2.0) -> tuple[Answers, np.ndarray]:
    """Confidences of a target and shadows, and which candidates the target has."""
    rng = np.random.default_rng(seed)
    hardness = rng.normal(scale=2, size=CANDIDATES + PUBLIC)
    inside = rng.random((MODELS + 1, CANDIDATES)) < 0.5
    inside[2::2] = ~inside[1::2]
    phi = hardness + rng.normal(size=(MODELS + 1, CANDIDATES + PUBLIC))
    phi[:, :CANDIDATES] += shift * inside
    first = hardness - 2
    public = PublicAnswers(
        target=phi[0, CANDIDATES:],
        shadows=phi[1:, CANDIDATES:],
        first=first[CANDIDATES:],
        first_of_candidates=first[:CANDIDATES],
        features=hardness[CANDIDATES:, None],
        features_of_candidates=hardness[:CANDIDATES, None],
    )
    known = Answers(
        target=phi[0, :CANDIDATES],
        shadows=phi[1:, :CANDIDATES],
        inside=inside[1:],
        public=public,
    )
    return known, inside[0]


def memberships(folder: Path) -> Iterator[str]:
    """A row for each attack that both have."""
    yield "| attack | AUC, fedlsg | LeakPro | TPR at 1 % FPR, fedlsg | LeakPro | rank correlation |"
    yield "|---|---|---|---|---|---|"
    known, member = world()
    ours = {one.name: one.score for one in membership_attacks()}
    for name in ("LiRA offline", "LiRA online", "RMIA offline", "RMIA online"):
        mine, theirs = ours[name](known), leakpro(folder, name, known)
        cells = [roc(score[member], score[~member]) for score in (mine, theirs)]
        rates = " | ".join(f"{100 * one.tpr[0.01].value:.1f} %" for one in cells)
        areas = " | ".join(f"{one.auc.value:.4f}" for one in cells)
        yield f"| {name} | {areas} | {rates} | {spearmanr(mine, theirs)[0]:.6f} |"


def labels_by(folder: Path) -> Callable[[Any, int, str], Tensor]:
    """breaching's labels of a dense update, by one of its strategies."""
    names = read(
        folder / "breaching" / "attacks" / "base_attack.py",
        "breaching.attacks",
        "breaching",
        "breaching.attacks",
        "breaching.attacks.auxiliaries",
        "breaching.attacks.auxiliaries.common",
        "breaching.cases",
        "breaching.cases.models",
        "breaching.cases.models.transformer_dictionary",
    )
    recover = names["_BaseAttacker"]._recover_label_information

    def run(seen: Any, examples: int, strategy: str) -> Tensor:
        gradients = [
            seen.blocks[f"classifier.{part}", "dense"].clone() for part in ("weight", "bias")
        ]
        shared = {"gradients": gradients, "metadata": {"num_data_points": examples}}
        torch.manual_seed(0)  # it fills in random labels
        own = SimpleNamespace(
            cfg=SimpleNamespace(label_strategy=strategy), setup={"device": torch.device("cpu")}
        )
        found: Tensor = recover(own, [shared], [], [])
        return found

    return run


def labels(folder: Path) -> Iterator[str]:
    """A row for each kind of batches: the share of labels that each reads."""
    from tests.fedlsg.support.observed import digits, mlp, observe

    yield f"| batches | fedlsg | {' | '.join(STRATEGIES)} |"
    yield "|---|---|" + "---|" * len(STRATEGIES)
    images, truth = digits(200)
    of_class = [(truth == c).nonzero().flatten() for c in range(10)]
    kinds = {
        "one class, 8 and 16 examples": [of_class[c][:n] for c in range(10) for n in (8, 16)],
        "two classes, 9 and 3 examples": [
            torch.cat([of_class[c][:9], of_class[c - 1][:3]]) for c in range(10)
        ],
        "all classes, 16 and 32 examples": [
            torch.arange(k, k + n) for k in (0, 70) for n in (16, 32)
        ],
    }
    theirs, prior = labels_by(folder), Prior(shape=(1, 8, 8))
    for words, batches in kinds.items():
        right, total = np.zeros(1 + len(STRATEGIES)), 0
        for rows in batches:
            seen, count = observe("dpsgd", mlp(nn.ReLU), images[rows], truth[rows]), len(rows)
            read = [label_counts(seen, prior, Knowledge(examples=count))] + [
                torch.bincount(theirs(seen, count, one).long().flatten(), minlength=10)
                for one in STRATEGIES
            ]
            true = torch.bincount(truth[rows], minlength=10)
            right += [int(torch.minimum(one, true).sum()) for one in read]
            total += count
        yield f"| {words} | " + " | ".join(f"{100 * share:.0f} %" for share in right / total) + " |"


def main() -> None:
    """Print the tables of what was given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--leakpro", type=Path)
    parser.add_argument("--breaching", type=Path)
    given = parser.parse_args()
    for folder, rows in ((given.leakpro, memberships), (given.breaching, labels)):
        if folder is not None:
            print(*rows(folder), "", sep="\n")


if __name__ == "__main__":
    main()
