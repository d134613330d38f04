"""Who reads a sum among its own clients; which secure sums are possible, and what to change where they are not."""

from fedlsg.secure_sum import plan_graph
from simulations.settings.run import Resolved

OWN_NOISE = (
    "every client of a sum gets the next weights and knows its own noise, so with colluders=0 epsilon would be too "
    "small against each of them: leave colluders out, or give 1 or more (a run that began with colluders=0 cannot be "
    "continued: start a new one)"
)


def readers_among(s: Resolved) -> int:
    """t: clients of a sum whose own shares of the noise are not counted; 0 where each payload has all of its noise.

    An assumed sum counts one. A sum that may be of a single client has no other one in it.
    """
    if s.trust == "secure":
        return s.colluders or 0
    return 1 if s.trust == "aggregate" and s.min_survivors > 1 else 0


def check_sums(s: Resolved) -> None:
    """Raise ValueError, naming the settings, if ``colluders`` has no sum, or no secure sum tolerates what is given."""
    if s.trust != "secure":
        if s.colluders is not None:
            raise ValueError(f"colluders={s.colluders} is a setting of trust=secure, not of trust={s.trust}")
        return
    if s.clients_per_round < 2:
        raise ValueError(
            "trust=secure adds at least two clients, got clients_per_round=1: raise clients, or take trust=client"
        )
    n, m, t = s.clients_per_round, s.min_survivors, s.colluders or 0
    said = f"trust=secure with clients_per_round={n}, min_survivors={m}, colluders={t}"
    if t < 1:
        raise ValueError(f"{said}: {OWN_NOISE}")
    if m - t < 1:
        raise ValueError(
            f"{said}: expected min_survivors >= colluders + 1 = {t + 1}, so that every sum has an honest client, got "
            f"{m}: {_raise_or(t + 1, n, 'lower colluders')}"
        )
    if 2 * m <= n + t:
        raise ValueError(
            f"{said}: expected min_survivors > (clients_per_round + colluders) / 2 = {(n + t) / 2:g}, got {m}: "
            f"otherwise the server could ask for the sums of two separate sets of clients: "
            f"{_raise_or((n + t) // 2 + 1, n, 'lower colluders or clients_per_round')}"
        )
    plan_graph(n, min_survivors=m, colluders=t)


def _raise_or(least: int, most: int, else_do: str) -> str:
    """What to do about too few survivors, where ``most`` clients are selected."""
    return f"give -c min_survivors={least} or more, at most {most}" if least <= most else else_do
