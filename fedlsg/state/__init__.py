"""The public state of a run: weights, W_0, frames, and server updates.

public_state    the values from which every process derives the frame of a round
round_plan      what is known of a round before it starts
server_state    the server's state, with optimizer and counters
server_update   one update as clients receive it, and replicas that apply it
"""

from fedlsg.state.public_state import PublicState, mean_frame
from fedlsg.state.round_plan import (
    ClientTerms,
    Phase,
    RoundPlan,
    different_terms,
    each,
    phase_of,
    plan_round,
    sizes_of,
)
from fedlsg.state.server_state import ServerState, load_weights
from fedlsg.state.server_update import (
    Step,
    StepError,
    encode_pruning,
    encode_update,
    extra_vectors,
    replay,
    restart,
)

__all__ = [
    "ClientTerms",
    "Phase",
    "PublicState",
    "RoundPlan",
    "ServerState",
    "Step",
    "StepError",
    "different_terms",
    "each",
    "encode_pruning",
    "encode_update",
    "extra_vectors",
    "load_weights",
    "mean_frame",
    "phase_of",
    "plan_round",
    "replay",
    "restart",
    "sizes_of",
]
