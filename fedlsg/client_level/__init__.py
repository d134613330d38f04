"""Client-level privacy (DP-FedAvg): the unit is a client with all of its data, and its whole update is clipped.

unit             what a round releases of a client: the chance that it is in the sum, and who adds the noise
update           local training without clip -> mean update -> clip
release          server: clipped updates of a Poisson sample of clients -> sum -> noise
adaptive_clip    the clip norm that follows a quantile of the updates' norms (Andrew et al. 2021)
"""

from fedlsg.client_level.adaptive_clip import AdaptiveClip
from fedlsg.client_level.release import release_round, sum_mechanism
from fedlsg.client_level.server_noise import ServerNoise
from fedlsg.client_level.unit import ClientUnit
from fedlsg.client_level.update import client_update, clipped_update

__all__ = [
    "AdaptiveClip", "ClientUnit", "ServerNoise", "client_update", "clipped_update", "release_round", "sum_mechanism",
]  # fmt: skip
