"""Terms by size are those of each client."""

import pytest

from fedlsg.state import AllTerms, ClientTerms, different_terms, each, sizes_of


def of(size: int) -> ClientTerms:
    return ClientTerms(num_examples=size, sample_rate=1 / size, noise_multiplier=float(size))


def test_terms_by_size_are_those_of_each_client():
    sizes = [3, 5, 3, 3, 7]
    listed, terms = tuple(map(of, sizes)), AllTerms(sizes, {size: of(size) for size in (3, 5, 7)})
    assert terms == listed
    assert tuple(terms[1:3]) == listed[1:3]
    assert terms[-1] is terms[4]
    assert terms != listed[:-1]
    with pytest.raises(IndexError):
        terms[5]
    for some in (terms, listed):
        assert list(different_terms(some)) == [of(3), of(5), of(7)]
        assert list(sizes_of(some)) == sizes
        assert each(some, lambda one: one.noise_multiplier) == [3.0, 5.0, 3.0, 3.0, 7.0]
