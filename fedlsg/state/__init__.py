"""The public state of a run: weights, W_0, frames, and the updates that lead from one version to
the next.
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
