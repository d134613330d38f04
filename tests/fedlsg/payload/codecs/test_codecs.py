"""The registry: a new codec is one file with a wire id of its own. One bit a value: by hand, biased
as predicted.
"""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf

from fedlsg.payload import (
    PayloadError,
    all_codecs,
    check_fits,
    codec_settings,
    find_codec,
    pack,
    unpack,
)
from fedlsg.payload.codecs.sign import CODEC
from fedlsg.strategies import recipe
from tests.fedlsg.support.coarse_codec import COARSE, planted
from tests.fedlsg.support.compact_oracle import MODES, compact
from tests.places import REPOSITORY

WIRE_IDS = {"float32": 1, "float16": 2, "bfloat16": 3, "noise-floor": 4, "int8": 5, "sign": 6}
"""Numbers in the headers of payloads that exist."""


def test_a_new_file_is_a_new_codec(tmp_path):
    with planted(tmp_path):
        coarse = find_codec("coarse")
        assert list(coarse.settings) == ["coarse_step"]
        assert coarse.with_settings({"coarse_step": 2.0, "noise_floor_step": 1.0}).summary() == {
            "coarse_step": 2.0
        }
        for mode in MODES:
            packed, expected = compact(coarse, mode)
            assert packed[5] == 100
            assert torch.equal(
                unpack(packed, expected) * 4 % 1, torch.zeros_like(unpack(packed, expected))
            )
        with pytest.raises(PayloadError, match="beyond 32767 steps"):
            pack(
                torch.tensor([1e5]),
                torch.tensor([0]),
                size=1,
                round=1,
                digest=bytes(32),
                codec=coarse,
            )
        with pytest.raises(PayloadError, match="not finite as coarse"):
            pack(
                torch.tensor([torch.nan]),
                torch.tensor([0]),
                size=1,
                round=1,
                digest=bytes(32),
                codec=coarse,
            )
        check_fits(coarse, recipe("dpsgd"))
        with pytest.raises(
            ValueError,
            match=r"'coarse' does not send factors; codecs that fit: 'float32', .*'int8'",
        ):
            check_fits(coarse, recipe("dp-powersgd"))
    with pytest.raises(ValueError, match="got 'coarse'"):
        find_codec("coarse")


def test_settings_of_codecs_are_declared_once(tmp_path):
    """Two codecs may share a setting, declared alike; with another range it is refused, with both
    places.
    """
    before = set(codec_settings())
    assert "noise_floor_step" in before
    other = COARSE.replace('name="coarse", wire_id=100', 'name="other", wire_id=101')
    with planted(tmp_path, coarse=COARSE, other=other):
        assert set(codec_settings()) == before | {"coarse_step"}
    other = other.replace("above=0,", "above=1,").replace("= 0.25", "= 2.0")
    why = r"'coarse_step' has two different declarations.* by codec coarse, .* by codec other"
    with planted(tmp_path, coarse=COARSE, other=other), pytest.raises(ValueError, match=why):
        codec_settings()


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (
            'name="coarse", wire_id=5',
            "codec '(coarse|int8)' with wire_id=5 cannot be distinguished from codec",
        ),
        (
            'name="int8", wire_id=100',
            "codec 'int8' with wire_id=100 cannot be distinguished from codec 'int8'",
        ),
        ('name="coarse", wire_id=0', "1 <= wire_id=0 <= 255"),
        ('name="coarse", wire_id=256', "1 <= wire_id=256 <= 255"),
    ],
)
def test_a_codec_that_a_receiver_could_not_distinguish_is_refused(declared, why, tmp_path):
    source = COARSE.replace('name="coarse", wire_id=100', declared)
    with planted(tmp_path, coarse=source), pytest.raises(ValueError, match=why):
        all_codecs()


ALSO_A_PRECISION = ("float32", "bfloat16")
ALLOWED = re.compile(r"precision|activation_storage|Bits|DEFAULT_CODEC")
"""Lines on the numbers of a pass, and the codec if none is given."""

DECLARED = ("codec", "precision", "activation_storage")
"""Settings of a run whose defaults are declared, in as many lines as the formatter likes."""

ORDER = '"codec": ("noise_floor_step",),'
"""The place of a setting in config.toml, as files that exist have it."""

MEANT = re.compile(r'"(fp32|float|fp16|half|bf16|8bit)": "\w+"')
"""Words of a user, by the name of a number's type or a codec that they mean."""


def says(line: str, name: str) -> bool:
    """Whether a line names the codec; a type of torch or numpy is none."""
    word = name.replace("-", "[-_]")
    line = MEANT.sub("", line)
    if line.strip() == ORDER or (name in ALSO_A_PRECISION and ALLOWED.search(line.strip())):
        return False
    distinct = "|" + word if "-" in name else ""
    return re.search(rf"""['"]{word}['"]|codecs? ['"`]*{word}\b{distinct}""", line) is not None


def without_defaults(source: str) -> str:
    """A file without the values of the fields in ``DECLARED``; every line stays in its place."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant() as value) if (
                name in DECLARED
            ):
                line = lines[value.lineno - 1]
                lines[value.lineno - 1] = line[: value.col_offset] + line[value.end_col_offset :]
    return "\n".join(lines)


def own_file(path: Path, name: str) -> bool:
    """Its own, and types of settings, which are made from declarations."""
    return path == Path(f"fedlsg/payload/codecs/{name.replace('-', '_')}.py") or path.name.endswith(
        "_settings_typed.py"
    )


def test_nobody_else_names_a_codec():
    found = [
        f"{path}: {line.strip()}"
        for top in ("fedlsg", "simulations", "strategies")
        for path in (
            file.relative_to(REPOSITORY) for file in sorted((REPOSITORY / top).rglob("*.py"))
        )
        for line in without_defaults((REPOSITORY / path).read_text()).splitlines()
        for name in WIRE_IDS
        if says(line, name) and not own_file(path, name)
    ]
    assert found == []


def encode_sign(values, counts):
    return CODEC.encode(values, counts, None, 0)


def decode_sign(body, counts):
    return CODEC.decode(body, counts, None, 0, max_norm=math.inf)


SPLITS = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@given(counts=SPLITS, seed=st.integers(0, 2**31))
@settings(max_examples=100)
def test_signs_and_mean_magnitudes_arrive_and_nothing_gets_longer(counts, seed):
    values = torch.randn(sum(counts), generator=torch.Generator().manual_seed(seed))
    body = encode_sign(values, counts)
    assert len(body) == 4 * sum(count > 0 for count in counts) + (sum(counts) + 7) // 8
    got = decode_sign(body, counts)
    for x, y in zip(values.split(counts), got.split(counts), strict=True):
        assert torch.equal(x >= 0, y >= 0)
        assert y.norm() <= x.norm() * (1 + 1e-6)
        if len(x):
            torch.testing.assert_close(y.abs(), x.abs().mean().expand(len(x)))


def test_the_bias_under_noise_is_the_predicted_one():
    """s erf(m / (d sqrt 2)), and 2 / pi of a small signal; s is the mean magnitude, d sqrt(2 / pi)
    of noise alone.
    """
    n, d = 400_000, 1.7
    noise = d * torch.randn(5 * n, generator=torch.Generator().manual_seed(1))
    alone = d * math.sqrt(2 / math.pi)
    for m in (0.05, 0.3, 1.0):
        signal = torch.cat([torch.full((n,), m), torch.zeros(4 * n)])
        got = decode_sign(encode_sign(signal + noise, [len(signal)]), [len(signal)])[:n].double()
        folded = alone * math.exp(-((m / d) ** 2) / 2) + m * erf(m / (d * math.sqrt(2)))
        s = (folded + 4 * alone) / 5
        assert float(got.mean()) == pytest.approx(
            s * erf(m / (d * math.sqrt(2))), abs=5 * s / math.sqrt(n)
        )
        assert float(got.abs()[0]) == pytest.approx(s, rel=0.01)
        if m == 0.05:
            assert float(got.mean()) == pytest.approx(2 / math.pi * m, abs=5 * s / math.sqrt(n))
            assert float(got.mean()) != pytest.approx(m, abs=5 * s / math.sqrt(n))  # it is biased


@pytest.mark.parametrize(
    ("body", "counts", "why"),
    [
        ("", [1], "expected 5 bytes of values, got 0"),
        ("0000803f80ff", [1], "expected 5 bytes"),
        ("0000c07f80", [1], "finite mean magnitudes"),
        ("0000807f80", [1], "finite mean magnitudes"),
        ("000080bf80", [1], "finite mean magnitudes"),
        ("0000008080", [1], "finite mean magnitudes"),
        ("0100807f80", [1], "finite mean magnitudes"),
        ("0000803f81", [1], "spare bits"),
        ("0000803fc0", [1], "spare bits"),
    ],
)
def test_bytes_that_no_encoder_makes(body, counts, why):
    with pytest.raises(ValueError, match=why):
        decode_sign(bytes.fromhex(body), counts)


def test_a_scale_of_the_largest_magnitude_would_not_contract():
    """Negative control: the mean makes it one."""
    x = torch.tensor([1.0] * 9 + [10.0]).double()
    got = decode_sign(encode_sign(x, [10]), [10]).double()
    assert (x - got).norm() < x.norm()
    assert (x - x.abs().max() * x.sign()).norm() > x.norm()
    assert np.allclose(got, 1.9)
