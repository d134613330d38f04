"""The public state of a run: weights, W_0, frames, and the updates that lead from one version to the next."""

from fedlsg.state.error_feedback import check_sign, keeps_memory
from fedlsg.state.server_state import ServerState, load_weights, select_clients
from fedlsg.state.server_update import Coding, Step, StepError, encode_pruning, encode_update, replay
from fedlsg.state.snapshot import beside_weights, restart

__all__ = [
    "Coding",
    "ServerState",
    "Step",
    "StepError",
    "beside_weights",
    "check_sign",
    "encode_pruning",
    "encode_update",
    "keeps_memory",
    "load_weights",
    "replay",
    "restart",
    "select_clients",
]
