"""How an attempt at a secure sum ends without a sum: a message is refused, or the attempt is given up."""

from dataclasses import dataclass


class SecureSumError(ValueError):
    """A message or a request that the protocol forbids. The text names what was expected and what was found.

    It quotes no secret: it may be sent to the other side and written to a log.
    """


class WrongSharesError(SecureSumError):
    """No secret that ``owner`` announced fits its shares: the owner dealt wrong ones, or several holders lie."""

    def __init__(self, what: str, owner: int) -> None:
        kept = "public key" if what == "mask key" else "commitment"
        super().__init__(f"{what} of client {owner}: the shares do not fit its {kept}")
        self.owner = owner


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """An attempt that ended without a sum. No input, and no sum of a part of the inputs, was revealed.

    ``stage``: keys, shares, masked, agree or unmask; ``alive``: clients whose message of that stage was accepted;
    ``owner``: the client whose shares, more than h, fit no secret that it announced.
    """

    stage: str
    reason: str
    alive: int
    owner: int | None = None

    def __str__(self) -> str:
        return f"secure sum given up in stage {self.stage}: {self.reason}"
