"""The benchmark of the secure sum, on the smallest round."""

import pytest

from benchmarks.privacy import secure_sum


@pytest.mark.slow
def test_a_round_and_a_pair_of_each_kind():
    terms = secure_sum.make_terms(5, 40, 13)
    found = secure_sum.whole_round(terms)
    assert found["bytes up"]["masked"] == 42 + 65
    assert found["plan"]["dropped"] == 1
    assert set(found["client"]) == {"keys", "shares", "masked", "agree", "unmask"}
    pairs = secure_sum.pairs_of(terms, pairs=1, warmup=0)
    assert list(pairs) == ["keys", "masks", "unmask"]
    assert all(set(arms) == {"fedlsg", "flower"} for arms in pairs.values())
