"""The cases that the contract suite runs: every recipe that is found, and the variants that the
papers report.
"""

from fedlsg import strategies
from tests.strategies.contract import MODELS, Case, Subject, subject

VARIANTS: dict[str, Case] = {
    "lsg: random units": Case("lsg", {"importance": "random"}),
    "lsg: units by the carriers": Case("lsg", {"importance": "carriers"}),
    "lsg: bottom units": Case("lsg", {"direction": "bottom"}),
    "lsg: late sparsity": Case("lsg", {"sparsity_from": 0.5}),
    "lsg: sparsity still to come": Case("lsg", {"sparsity_from": 0.9}),
    "lsg: averaged core": Case("lsg", {"estimator": "averaged"}),
    "lsg: clip per block": Case("lsg", {"clip": "per-block"}),
    "lsg: clip weights": Case("lsg", {"norms_clip_weight": 3.0, "classifier_clip_weight": 0.25}),
    "lsg: two copies": Case("lsg", multiplicity=2),
    "lsg: direct sparsification as well": Case("lsg", {"sparsify_update": 0.4}),
    "lsg: not private": Case("lsg", {"mechanism": "none"}),
    "lsg-lora: bottom units": Case("lsg-lora", {"direction": "bottom", "lora_alpha": 16.0}),
    "rgp: no residual": Case("rgp", {"residual": False}),
    "rgp: not private": Case("rgp", {"mechanism": "none"}),
    "rgp: direct sparsification": Case("rgp", {"sparsify_update": 0.4}),
    "rgp: late history": Case("rgp", {"warmup": 3, "power_steps": 2}),
    "rgp: clip per block, weights": Case("rgp", {"clip": "per-block", "norms_clip_weight": 2.0}),
    "rgp: normalised history, carried weights alone": Case(
        "rgp", {"history": "normalized", "trained": "carried"}
    ),
    "rgp: left factor, weights": Case("rgp", {"factors": "left", "classifier_clip_weight": 0.01}),
    "rs: on carriers": Case("rs", {"carrier": "low-rank"}),
    "rs: on carriers of the change": Case("rs", {"carrier": "low-rank-change"}),
    "rs: on random carriers": Case("rs", {"carrier": "random"}),
    "rs: new mask every step": Case("rs", {"redraw": "step"}),
    "rs: two masks an epoch": Case("rs", {"redraw": "2"}),
    "rs: constant rate": Case("rs", {"cooling": False}),
    "rs: ranked": Case("rs", {"ranking": "gradients"}),
    "rs: noisy SGD": Case("rs", {"mechanism": "noise-only"}),
    "rs: clipped SGD": Case("rs", {"mechanism": "clip-only"}),
    "rs: clip per block": Case("rs", {"clip": "per-block"}),
    "rs: two copies, clip weights": Case("rs", {"norms_clip_weight": 2.0}, multiplicity=2),
    "sparse-dpsgd: refreshed": Case("sparse-dpsgd", {"refresh": True}),
    "sparse-dpsgd: late sparsity": Case("sparse-dpsgd", {"sparsity_from": 0.5}),
    **{
        f"dp-ssgd: {prune}, {drop}": Case("dp-ssgd", {"prune": prune, "drop": drop})
        for prune in ("none", "random", "synflow", "dp-snip")
        for drop in ("none", "random", "magnitude")
    },
    "dp-ssgd: pruning round": Case("dp-ssgd", {"prune": "dp-snip"}, pruning=True),
    "dp-ssgd: pruning round, two copies, weights, per block": Case(
        "dp-ssgd",
        {"prune": "dp-snip", "norms_clip_weight": 3.0, "clip": "per-block"},
        multiplicity=2,
        pruning=True,
    ),
    "dp-powersgd: clip weights": Case(
        "dp-powersgd", {"norms_clip_weight": 3.0, "classifier_clip_weight": 0.5}
    ),
    "dp-powersgd: two copies": Case("dp-powersgd", multiplicity=2),
    "dpsgd: clip per block": Case("dpsgd", {"clip": "per-block"}),
    "dpsgd: averaged weights": Case("dpsgd", {"ema": 0.9}),
    "dp-tl: sparse": Case("dp-tl", {"sparsity": 0.5}),
    "linear-probe: clip weights": Case("linear-probe", {"classifier_clip_weight": 2.0}),
    "probe: other ranks, no mask": Case("probe", {"rank": 7, "out_rank": 3, "sparsity": 0.0}),
    "probe: whitened": Case("probe", {"power": 0.5}),
    "probe: whitened, clip per block, weights": Case(
        "probe",
        {
            "power": 0.5,
            "clip": "per-block",
            "norms_clip_weight": 3.0,
            "classifier_clip_weight": 0.25,
        },
    ),
    "probe: not scaled, two copies": Case("probe", {"power": 0.0}, multiplicity=2),
    "lsg-probe: units by the carriers": Case("lsg-probe", {"importance": "carriers"}),
    "lsg-probe: averaged core, refreshed": Case(
        "lsg-probe", {"estimator": "averaged", "refresh_rounds": 1}
    ),
    "dp-kfc: whitened less, clip per block, weights": Case(
        "dp-kfc", {"power": 0.25, "clip": "per-block", "norms_clip_weight": 3.0}
    ),
    "gep: biased": Case("gep", {"biased": True}),
    "gep: random masks": Case("gep", {"sparsity": 0.5}),
    "gep: small rests, two copies, weights": Case(
        "gep",
        {"residual_clip": 0.1, "norms_clip_weight": 3.0, "classifier_clip_weight": 0.25},
        multiplicity=2,
    ),
    "sgd: clipped": Case("sgd", {"mechanism": "clip-only"}),
}

PAIRS = ("none, none", "random, random", "synflow, magnitude", "dp-snip, random")
"""Every pruning and every drop of dp-ssgd once: what the plain tests run of their product."""

RECIPES: dict[str, Case] = {name: Case(name) for name in strategies.names()}
CASES: dict[str, Case] = RECIPES | VARIANTS


def has_own_step(case: str) -> bool:
    """Whether a case differs from its recipe in clip, noise, copies or phase, and not in its frame
    alone.
    """
    made, plain = CASES[case], RECIPES[CASES[case].name]
    return made.multiplicity > 1 or made.pruning or made.method.mechanism != plain.method.mechanism


def repeats(case: str) -> bool:
    """Whether others show the same: one of dp-ssgd's products that is not in ``PAIRS``."""
    name, _, choices = case.partition(": ")
    return name == "dp-ssgd" and "," in choices and not has_own_step(case) and choices not in PAIRS


_SUBJECTS: dict[tuple[str, str], Subject] = {}


def of(case: str, model: str = "mlp") -> Subject:
    """The subject of a case, built once. Nothing changes it."""
    if (case, model) not in _SUBJECTS:
        _SUBJECTS[case, model] = subject(CASES[case], MODELS[model])
    return _SUBJECTS[case, model]
