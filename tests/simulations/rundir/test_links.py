"""Seconds on links: by hand, against a brute-force clock, and what is no link."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.rundir.journal import Line
from simulations.rundir.links import Link, parse_link, transfer_seconds


def line(round: int, client: int, direction: str, wire: int) -> Line:
    return Line(round=round, client=client, direction=direction, values_bytes=0, payload_bytes=0, wire_bytes=wire)


messages = st.lists(
    st.builds(
        line, st.integers(1, 3), st.integers(0, 3), st.sampled_from(["up", "down"]), st.integers(0, 10**9)
    )
).map(lambda lines: sorted(lines, key=lambda one: one.round))  # fmt: skip


@given(messages, st.floats(1e3, 1e11), st.floats(1e3, 1e11), st.floats(0, 10))
def test_against_clocks_of_every_client(lines, up, down, latency):
    link = Link(name="any", up=up, down=down, latency=latency)
    clock = 0.0
    for round in sorted({one.round for one in lines}):
        ends = {}
        for one in lines:
            if one.round == round:
                began = ends.get(one.client, clock)
                ends[one.client] = began + latency + one.wire_bytes * 8 / {"up": up, "down": down}[one.direction]
        clock = max(ends.values())
    assert math.isclose(transfer_seconds(lines, link), clock, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("text", ["", "dsl", "10/50", "0/1/1", "1/-1/1", "1/1/nan", "1/1/-1", "inf/1/1", "a/b/c"])
def test_what_is_no_link_is_refused(text):
    with pytest.raises(ValueError, match="expected --link as one of broadband, mobile, datacentre or UP/DOWN/LATENCY"):
        parse_link(text)
