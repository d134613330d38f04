"""Terms of very many clients share the object of their size."""

from fedlsg.state import ClientTerms, different_terms, each, sizes_of


def of(size: int) -> ClientTerms:
    return ClientTerms(num_examples=size, sample_rate=1 / size, noise_multiplier=float(size))


def test_shared_terms_are_those_of_each_client():
    sizes = [3, 5, 3, 3, 7]
    of_size = {size: of(size) for size in sizes}
    for some in (tuple(map(of, sizes)), tuple(of_size[size] for size in sizes)):
        assert list(different_terms(some)) == [of(3), of(5), of(7)]
        assert sizes_of(some) == sizes
        asked: list[int] = []
        assert each(some, lambda one, asked=asked: asked.append(one.num_examples) or one.noise_multiplier) == sizes
    assert asked == [3, 5, 7]
