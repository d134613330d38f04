"""Bytes of one update of RoBERTa-base, with the head's first layer dense and carried.

    python -m benchmarks.roberta_payload

The model has RoBERTa-base's shapes and random weights, so nothing is downloaded. Each row packs one payload as a client
does: as many values as its frame keeps, a header and a checksum. The values are noise alone; the size depends on them
only where a codec codes entropy. "Before" leaves every layer of the head dense; "after" carries all of them but the
output layer, as fedlsg does.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import torch

import strategies
from fedlsg.carriers import prepare_model
from fedlsg.frame import Frame
from fedlsg.method import Method, Schedule
from fedlsg.payload import DEFAULT_CODEC, Dither, pack
from fedlsg.state import PublicState, mean_frame
from simulations.models.encoder import build_encoder
from simulations.models.encoder_source import find_encoder

HEAD = "classifier"
CODED = "noise-floor"
SUBJECTS = {
    "`lsg`, r 8, p 0.3": ("lsg", {"rank": 8, "sparsity": 0.3}),
    "`lsg`, r 4, p 0.5 (Table 1a, SST-2)": ("lsg", {"rank": 4, "sparsity": 0.5}),
    "`rgp`, r 8": ("rgp", {"rank": 8}),
    "`probe`, 32 x 16": ("probe", {"rank": 32, "out_rank": 16}),
    "`lora`, r 8": ("lora", {"rank": 8}),
    "`linear-probe`": ("linear-probe", {}),
}


def state_of(method: Method) -> PublicState:
    """RoBERTa-base with two classes, as the method trains it."""
    torch.manual_seed(0)
    model = build_encoder(find_encoder("roberta-base", "none"), num_classes=2)
    prepare_model(model, method.carrier, classifier=HEAD, seed=0)
    source = None if method.carrier.source is None else (lambda *_: None)
    return PublicState.start(model, method, Schedule(rounds=10), seed=0, classifier=HEAD, source=source)  # type: ignore[arg-type]


def before_and_after(public: PublicState) -> Iterator[Frame]:
    """The frame with the head dense, and as it is now."""
    outside = tuple(name for name in public.carried if not name.startswith(f"{HEAD}."))
    for carried in (outside, public.carried):
        yield mean_frame(replace(public, carried=carried))


def payload_size(frame: Frame, codec: str) -> int:
    """Bytes of one packed update that is noise of deviation 1."""
    values = torch.randn(frame.kept, generator=torch.Generator().manual_seed(0))
    dither = Dither(seed=0, client=0, noise_std=1.0)
    wire = frame.wire
    how = {"size": wire.size, "round": 1, "digest": bytes(32), "blocks": wire.blocks, "dither": dither}
    return len(pack(values, wire.indices, codec=codec, **how))  # type: ignore[arg-type]


def row(name: str, public: PublicState, dense: int) -> str:
    """One line of the Markdown table. ``dense``: bytes of an update of dense DP-SGD."""
    (small, plain, coded), (now_small, now_plain, now_coded) = (
        (frame.kept, payload_size(frame, DEFAULT_CODEC), payload_size(frame, CODED))
        for frame in before_and_after(public)
    )
    return (
        f"| {name} | {small:,} | {now_small:,} | {plain:,} | {now_plain:,} | {dense / plain:.1f}x | "
        f"{dense / now_plain:.1f}x | {coded:,} | {now_coded:,} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print("| method | values, before | after | bytes, before | after | smaller than dense, before | after "
          f"| bytes with `{CODED}`, before | after |\n" + "|---" * 9 + "|")  # fmt: skip
    dense = payload_size(mean_frame(state_of(strategies.recipe("dpsgd"))), DEFAULT_CODEC)
    for name, (recipe, settings) in SUBJECTS.items():
        print(row(name, state_of(strategies.recipe(recipe, **settings)), dense), flush=True)


if __name__ == "__main__":
    main()
