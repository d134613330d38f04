"""Results of each client, one row a client: complete in clients.csv, which is for the owner only.

``by_client`` of summary.json is for everybody who reads the run: it has no number of examples, and
no name unless the setting ``show_names`` is on. A run whose server draws clients in secret has
neither.
"""

import math
from collections.abc import Iterable, Sequence

from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.evaluate import Score
from fedlsg.simulations.storage.atomic_files import Record

TESTED = ("test_rows", "accuracy", "loss")
"""Columns of what was measured on a client's part of the test split."""


def client_rows(
    plan: Plan, epsilons: Sequence[float], tested: Sequence[tuple[int, Score | None]] | None
) -> list[Record]:
    """A row for each client, the worst accuracy (or loss) first.

    No rows if there are neither names nor measurements nor own epsilons, or if the server draws the
    clients in secret.

    epsilons: certified, by client; a row has None for an infinite one.
    tested: the test rows of each client, and the scores on them; None if not measured, and rows are
        then in the order of the clients.
    """
    has_budgets = plan.clients.own_budgets
    if plan.unit.at_server or (plan.clients.names is None and tested is None and not has_budgets):
        return []
    rows = [
        {
            "client": client,
            **({} if plan.clients.names is None else {"name": plan.clients.names[client]}),
            "persons" if plan.unit.persons else "examples": plan.clients.sizes[client],
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            **(_budget(plan, client, epsilon) if has_budgets else {}),
        }
        for client, epsilon in enumerate(epsilons)
    ]
    for row, (count, score) in zip(rows, tested or (), strict=False):
        numbers = (None, None) if score is None else (score.accuracy, score.loss)
        row |= dict(zip(TESTED, (count, *numbers), strict=True))
    return sorted(rows, key=_badness)


def _budget(plan: Plan, client: int, epsilon: float) -> Record:
    """The columns of a client with a budget of its own: public numbers.

    planned: epsilon that it may spend, at its own delta.
    left: epsilon that is not spent yet; None for an infinite epsilon.
    weight: of its payloads in the sum.
    """
    planned, delta = plan.clients.budgets[client]
    assert planned is not None
    left = max(planned - epsilon, 0.0) if math.isfinite(epsilon) else None
    delta_columns = {} if plan.settings.client_deltas is None else {"delta": delta}
    return {"planned": planned, **delta_columns, "left": left, "weight": plan.terms[client].weight}


def shared_rows(plan: Plan, rows: Iterable[Record]) -> list[Record]:
    """Rows for summary.json, without numbers of examples and, unless they are shown, names.

    No rows if nothing but the clients' numbers is left.
    """
    names = plan.settings.show_names
    hidden = {"examples", "persons", *([] if names else ["name"])}
    shown = [{name: value for name, value in row.items() if name not in hidden} for row in rows]
    return shown if names or any({"loss", "planned"} & row.keys() for row in shown) else []


def _badness(row: Record) -> tuple[float, float]:
    """A key that sorts the worst client first, and clients without test rows last."""
    accuracy, loss = row.get("accuracy"), row.get("loss")
    if loss is None:
        return math.inf, 0.0
    return (0.0 if accuracy is None else accuracy), -loss
