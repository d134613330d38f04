"""The errors with which a client refuses to train.

The text of a ``RefusalError`` may leave a client, because no example was touched before it. Any
other error near a client's data becomes one constant reply: its type or text may reveal data.
"""

import traceback
from logging import ERROR

from flwr.common.logger import log

from fedlsg.strategies.protocol.wire import (
    FAILED,
    FRAME_DIFFERS,
    OVER_BUDGET,
    REFUSED_RUN,
    REFUSED_TERMS,
    REPLICA_DIFFERS,
    REPLICA_MISSING,
)


def log_failure() -> None:
    """Write the current exception to the log of this process, which stays with its owner."""
    log(ERROR, traceback.format_exc().encode("utf-8", "backslashreplace").decode())


class RefusalError(RuntimeError):
    """A client refuses to train. Its text, about settings, files and public data, leaves it.

    code: of the error reply.
    """

    code = FAILED


class FrameDiffersError(RefusalError):
    """This machine derives another frame than the server's, which must be sent.

    Nothing was trained or charged.
    """

    code = FRAME_DIFFERS


class ReplicaMissingError(RefusalError):
    """The client has no replica of the version that the message starts from.

    Nothing was trained or charged.
    """

    code = REPLICA_MISSING


class ReplicaDiffersError(RefusalError):
    """The replica's weights are not those of the server. Nothing was trained or charged."""

    code = REPLICA_DIFFERS


class OverBudgetError(RefusalError):
    """The next round would pass this client's privacy budget. Nothing was trained or charged."""

    code = OVER_BUDGET


class SecureSumRefusedError(RefusalError):
    """The protocol forbids this stage of a secure sum. Nothing was trained or charged for it."""


class ChangedModelError(RefusalError):
    """The model or the loss changed after its check. Nothing was trained or charged."""


class SettingsError(RefusalError):
    """The run's settings cannot be used on this client. Nothing was trained or charged."""


class TermsError(RefusalError):
    """The client's own terms forbid the request, or are incomplete.

    Nothing was trained or charged.
    """

    code = REFUSED_TERMS


class RefusedRunError(TermsError):
    """The run's settings are weaker than the client's terms: only another run can help."""

    code = REFUSED_RUN


class OwnDataError(RefusalError):
    """The client's own data cannot be used. The text is constant: the reason may quote a row."""

    def __init__(self) -> None:
        super().__init__("refused: data; only this client's own log says why")
