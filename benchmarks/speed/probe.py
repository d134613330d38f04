"""CPU seconds of a probe against those of the private steps between two refreshes.

    python -m benchmarks.speed.probe --json FILE [--models mlp cnn-505k minilm] [--probes 1000]
    [--pairs 3]

A probe is what ``probe_basis`` does with inputs that are there: second moments of ``--probes``
inputs, eigenvectors. A step is that of one client with 250 examples, in the form core with the
carriers that were found (128 rows, 64 columns). The table divides a probe by the steps of 20
rounds, for several numbers of examples that a process computes a round: those of one client if it
probes alone, those of all clients if they share a process. The encoder has MiniLM's shape and
random weights, with its top two layers trained; it needs the package transformers. Texts have 4 to
63 words, padded.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pairs import interleave, parser, summary, write
from benchmarks.speed.subjects import Subject, losses
from fedlsg.carriers import carried_parameters, of_pairs
from fedlsg.carriers.probe import Probe
from fedlsg.carriers.probe.eigen import top_eigenvectors
from fedlsg.carriers.probe.moments import second_moments
from fedlsg.frame import Frame, make_blocks
from fedlsg.frame.forms import CORE
from fedlsg.gradients import trainable
from fedlsg.method import LocalTraining, client_step
from fedlsg.privacy import Mechanism
from fedlsg.randomness import secret_stream
from fedlsg.simulations.models.small import small_cnn

CARRIER = Probe(form="core", rank=128, out_rank=64)
BATCH, REFRESH = 250, 20
A_ROUND = (250, 500, 1000, 5000)
LENGTH, OCTAVES = 64, (4, 8, 16, 32)
"""Tokens of a padded text, and the least length of each octave of lengths."""
WIDTH, LAYERS, TRAINED, WORDS = 384, 6, 2, 30522

Pairs = dict[str, tuple[Tensor, Tensor]]


def mlp(count: int) -> Subject:
    """768-256-256-10 on 16 x 16 images: 265 k parameters."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(768, 256),
            nn.Tanh(),
            nn.Linear(256, 256),
            nn.Tanh(),
            nn.Linear(256, 10),
        )

    return Subject(
        build=build, inputs=torch.randn(count, 3, 16, 16), targets=torch.randint(10, (count,))
    )


def cnn(count: int) -> Subject:
    """``small_cnn`` of width 32 on CIFAR-10's shape: 505 k parameters."""
    images = torch.randn(count, 3, 32, 32)
    return Subject(
        build=partial(small_cnn, 3, 32, 10, width=32),
        inputs=images,
        targets=torch.randint(10, (count,)),
    )


class Texts(nn.Module):
    """A BERT of MiniLM's shape, the mean of its hidden states, two classes. 0 is padding."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        shape = BertConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=12,
            intermediate_size=4 * WIDTH,
        )
        self.body = BertModel(shape, add_pooling_layer=False).requires_grad_(False)
        self.body.encoder.layer[LAYERS - TRAINED :].requires_grad_(True)
        self.classifier = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids != 0
        hidden = self.body(
            input_ids=ids, attention_mask=mask.long()
        ).last_hidden_state * mask.unsqueeze(2)
        logits: Tensor = self.classifier(hidden.sum(1) / mask.sum(1, keepdim=True))
        return logits


def texts(count: int) -> Subject:
    """MiniLM's shape, the top two layers trained: 3.5 M parameters."""
    octave = torch.tensor(OCTAVES)[torch.randint(len(OCTAVES), (count, 1))]
    lengths = octave + (torch.rand(count, 1) * octave).long()
    ids = torch.randint(1, WORDS, (count, LENGTH)) * (torch.arange(LENGTH) < lengths)
    return Subject(build=Texts, inputs=ids, targets=torch.randint(2, (count,)))


SUBJECTS = {"mlp": mlp, "cnn-505k": cnn, "minilm": texts}


def find_pairs(model: nn.Module, subject: Subject) -> Pairs:
    """A probe: L and R of every carried weight."""
    parameters = trainable(model)
    moments = second_moments(
        model, losses, subject.inputs, subject.targets, carried_parameters(model, CARRIER)
    )
    pairs, generator = {}, torch.Generator().manual_seed(0)
    for name, (A, B) in moments.items():
        sizes = CARRIER.sizes(parameters[name])
        L, R = (
            top_eigenvectors(*given, generator=generator)[1]
            for given in ((B, sizes.r), (A, sizes.s))
        )
        pairs[name] = L, R.mT.contiguous()
    return pairs


def make_step(model: nn.Module, subject: Subject, pairs: Pairs) -> Callable[[], object]:
    """A private step of one client with the first BATCH examples."""
    coordinates = of_pairs(trainable(model), pairs, CORE)
    frame = Frame(coordinates=coordinates, blocks=make_blocks(coordinates))
    return partial(
        client_step,
        model,
        lambda rows: (subject.inputs[rows], subject.targets[rows]),
        losses,
        frame=frame,
        mechanism=Mechanism(noise_multiplier=1.0),
        local=LocalTraining(microbatch_size=64, expected_batch=BATCH),
        num_examples=BATCH,
        sampler=secret_stream(),
        noise=secret_stream(),
        charge=lambda: None,
    )


def measure(name: str, *, probes: int, pairs: int, warmup: int) -> dict[str, Any]:
    """Median CPU seconds of a probe and a step, and a probe's share of the steps between two
    refreshes.
    """
    torch.manual_seed(0)
    subject = SUBJECTS[name](max(probes, BATCH))
    model = subject.build().eval()
    step = make_step(model, subject, find_pairs(model, subject))
    arms: dict[str, Callable[[], object]] = {
        "probe": partial(find_pairs, model, subject),
        "step": step,
    }
    found = summary(interleave(arms, pairs=pairs, warmup=warmup), ("step",))
    ratio = found["probe"]["cpu"]["over step"]["median"]
    shares = {examples: ratio * BATCH / (examples * REFRESH) for examples in A_ROUND}
    return {
        "seconds": {arm: own["cpu"]["median"] for arm, own in found.items()},
        "shares": shares,
        "arms": found,
    }


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.set_defaults(threads=(1,), pairs=3, warmup=1)
    options.add_argument("--models", nargs="+", default=list(SUBJECTS), choices=list(SUBJECTS))
    options.add_argument("--probes", type=int, default=1000)
    given = options.parse_args()
    torch.set_num_threads(given.threads[0])
    counts = " | ".join(f"{examples} examples a round" for examples in A_ROUND)
    print(
        f"| model | probe, CPU s | step of {BATCH}, CPU s | {counts} |\n"
        f"|{'---|' * (3 + len(A_ROUND))}"
    )
    results = {}
    for name in given.models:
        if name == "minilm" and importlib.util.find_spec("transformers") is None:
            print(f"{name}: left out, the package transformers is not installed")
            continue
        found = results[name] = measure(
            name, probes=given.probes, pairs=given.pairs, warmup=given.warmup
        )
        shares = " | ".join(f"{share:.1%}" for share in found["shares"].values())
        print(
            f"| {name} | {found['seconds']['probe']:.3f} | {found['seconds']['step']:.3f} | "
            f"{shares} |",
            flush=True,
        )
    write(given.json, {"benchmark": "probe", "probes": given.probes, "results": results})


if __name__ == "__main__":
    main()
