"""rho: how large the noise of a step is next to what it hides.

Symbols: sigma_k noise multiplier of client k, C clip norm, G blocks, d kept coordinates, B expected batch of a step.
"""

import math
from collections.abc import Sequence

from fedlsg.privacy.mechanism import Mechanism


def rho(
    mechanism: Mechanism,
    noise_multipliers: Sequence[float],
    *,
    clients_per_round: int,
    values: float,
    blocks: int,
    expected_batch: float,
) -> float | None:
    """Norm of a step's noise over the clip norm, both of the mean gradient that the server gets: sigma sqrt(d) / B.

    ``noise_multipliers``: sigma_k of every client, of whom ``clients_per_round`` take part. ``values``: d, the kept
    coordinates that are clipped and get noise. ``expected_batch``: B, of a step over all clients of a round, q N
    for one client and K q N for K clients of N examples.
    The general form is sqrt(K mean(sigma_k^2) d) noise_share C / (S B), with the sensitivity S:

    - One client, joint clip: sigma sqrt(d) / B.
    - K clients, ``trust="client"``: their noise adds up to sigma sqrt(K) C in every coordinate. At equal batches of a
      step (B) rho is sqrt(K) times that of one client; at equal batches of a client (q N), 1 / sqrt(K) times.
    - ``trust="aggregate"``: each of the K clients adds 1 / sqrt(m - 1) of the noise, m the fewest in the sum. If it
      needs all K, rho is sqrt(K / (K - 1)) times that of one client with the batch B. ``trust="secure"`` likewise,
      1 / sqrt(m - t) of it.
    - Several local steps: rho of each of them. Over a round the noise adds up as the root of the steps, gradients as
      the steps at most.
    - Clip of each block: S = C sqrt(G), so that rho has the noise multiplier that the ledger is charged with.
    - Clients with weights in the sum: their noise multipliers times the weights.
    - Clip weights of groups, and scaled carriers: in the scale of the clip, where every coordinate has the same noise.
    - Factors (PowerSGD): of the dense gradient that they are made from.

    Nothing that a codec or a secure sum adds is in it. 0 without noise; None for noise without a clip, which has no
    clip norm.
    """
    if not mechanism.adds_noise:
        return 0.0
    if not mechanism.clips:
        return None
    mean_square = math.fsum(sigma**2 for sigma in noise_multipliers) / len(noise_multipliers)
    noise = math.sqrt(clients_per_round * mean_square * values) * mechanism.noise_share * mechanism.clip_norm
    return noise / (mechanism.sensitivity(blocks) * expected_batch)
