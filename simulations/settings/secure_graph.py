"""Which secure sums of how many clients are possible, and what to change where they are not."""

from fedlsg.secure_sum import plan_graph
from simulations.settings.run import Resolved


def check_graph(s: Resolved) -> None:
    """Raise ValueError, naming the settings, if no secure sum of these clients tolerates what is asked for."""
    if s.clients_per_round < 2:
        raise ValueError(
            "trust=secure adds at least two clients, got clients_per_round=1: raise clients, or take trust=client"
        )
    n, m, t = s.clients_per_round, s.min_survivors, s.colluders or 0
    said = f"trust=secure with clients_per_round={n}, min_survivors={m}, colluders={t}"
    if m - t < 2:
        raise ValueError(
            f"{said}: expected min_survivors >= colluders + 2 = {t + 2}, so that every sum has two honest clients, got "
            f"{m}: {_raise_or(t + 2, n, 'lower colluders')}"
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
