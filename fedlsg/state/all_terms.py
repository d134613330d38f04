"""The terms of very many clients, which follow from their declared sizes: a term is kept once for each size."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import overload

from fedlsg.state.round_plan import ClientTerms


class AllTerms(Sequence[ClientTerms]):
    """By client: ``of_size`` has the terms of clients with so many examples, ``sizes`` the examples of each client."""

    def __init__(self, sizes: Sequence[int], of_size: Mapping[int, ClientTerms]) -> None:
        self.sizes, self.of_size = sizes, of_size

    @overload
    def __getitem__(self, client: int) -> ClientTerms: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[ClientTerms]: ...
    def __getitem__(self, client: int | slice) -> ClientTerms | Sequence[ClientTerms]:
        if isinstance(client, slice):
            return AllTerms(self.sizes[client], self.of_size)
        return self.of_size[self.sizes[client]]

    def __len__(self) -> int:
        return len(self.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def different_terms(terms: Sequence[ClientTerms]) -> Collection[ClientTerms]:
    """Each of the terms once."""
    return terms.of_size.values() if isinstance(terms, AllTerms) else dict.fromkeys(terms)


def sizes_of(terms: Sequence[ClientTerms]) -> Sequence[int]:
    """Declared examples of each client."""
    return terms.sizes if isinstance(terms, AllTerms) else [one.num_examples for one in terms]


def each(terms: Sequence[ClientTerms], value: Callable[[ClientTerms], float]) -> list[float]:
    """A value of each client's terms, computed once for each size."""
    if not isinstance(terms, AllTerms):
        return list(map(value, terms))
    known = {size: value(one) for size, one in terms.of_size.items()}
    return list(map(known.__getitem__, terms.sizes))
