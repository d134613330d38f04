"""How long a client may take: worked by hand, and independent of its own hanging."""

from hypothesis import given
from hypothesis import strategies as st

from fedlsg.participation import ClientLimit
from fedlsg.participation.health import FACTOR


def learnt(*times: float) -> ClientLimit:
    """Client i took ``times[i]`` seconds."""
    limit = ClientLimit()
    for client, seconds in enumerate(times):
        limit.took(client, seconds)
    return limit


def test_the_limit_is_ten_times_the_median_of_the_others():
    assert learnt(20.0, 30.0, 100.0).seconds(3) == 300.0
    assert learnt(20.0, 30.0, 100.0).seconds(1) == 600.0, "of 20 and 100; its own 30 is less"
    assert learnt(20.0, 30.0, 100.0).seconds(2) == 1000.0, "its own time: it has shown that it needs it"


@given(st.lists(st.floats(7, 1e4), min_size=1, max_size=40), st.floats(7, 1e4))
def test_a_client_whose_time_is_near_the_others_is_never_stopped(times, factor):
    """Within a factor of ten of the median of the last 32."""
    limit = learnt(*times)
    recent = sorted(times[-32:])
    assert limit.seconds(len(times)) >= FACTOR * recent[(len(recent) - 1) // 2] * (1 - 1e-12)
