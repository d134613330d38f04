"""The lines of a comparison as a table: for pages and terminals, as CSV and as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulations.compare.lines import PROBE, Line, measured, shown
from simulations.plan.noise import RHO_MEANING
from simulations.report.facts import CLIENT_LEVEL, trust_words
from simulations.report.figure import looks
from simulations.report.page import Row, RowKind, Table
from simulations.report.words import NOT_PRIVATE, epsilon_words, human_bytes
from simulations.rundir.results import as_csv
from simulations.workloads.chance import STANDARD_ERRORS

CHANCE_MARK = "†"
CHANCE_NOTE = f"{CHANCE_MARK} not better than guessing by {STANDARD_ERRORS:g} standard errors"


def as_record(line: Line) -> dict[str, Any]:
    """The line of table.csv; None where there is nothing to say."""
    names = ("workload", "model", "rank", "sparsity", "delta")
    settings = {name: line.setting(name) for name in names}
    return {
        "label": line.label,
        "method": line.method,
        **settings,
        **{name: value for name, value in line.varied.items() if name not in settings},
        "epsilon_target": line.epsilon_target,
        "epsilon_max": line.epsilon,
        "epsilon_outside": line.epsilon_outside,
        "private": line.private,
        "unit": line.unit,
        "trust": line.trust,
        "rho": line.rho,
        "n": len(line.done),
        "planned": len(line.runs),
        "accuracy_mean": None if line.by_loss else line.mean,
        "accuracy_sd": None if line.by_loss else line.sd,
        "loss_mean": line.mean_of("loss"),
        "standard_error": line.standard_error,
        "chance": None if line.chance is None else line.chance.level,
        "beats_chance": line.beats_chance,
        "over_linear_probe": line.over_probe,
        "uplink_bytes_per_client_round": line.uplink,
        "saved_ratio": line.saved,
        "uplink_bytes_total": line.total_uplink,
        "downlink_bytes_total": line.total_downlink,
        "transfer_seconds": line.transfer,
        "wall_seconds": line.seconds,
        "training_seconds": line.training_seconds,
    }


def table_csv(table: Sequence[Line]) -> str:
    """The aggregated table, shares in 0..1."""
    return as_csv([as_record(line) for line in table], otherwise="label")


COLUMNS = {
    "method": "method", "rank": "r", "sparsity": "p", "epsilon": "epsilon", "outside": "outside", "unit": "unit",
    "trust": "trust", "rho": "rho", "accuracy": "accuracy, %", "error": "s.e.", "n": "n", "probe": "over probe",
    "uplink": "uplink", "saved": "saved", "transfer": "transfer, s", "seconds": "training, s",
}  # fmt: skip


OPTIONAL = ("error", "seconds")
"""Columns that a narrow terminal leaves out."""
LESS = ("saved", "rho", "uplink", "sparsity", "probe")
"""Columns that a narrow terminal leaves out for settings that are varied."""


def comparison_table(table: Sequence[Line]) -> Table:
    """One row a line, in groups of one epsilon target; columns in which no line says anything are left out."""
    cells = [_cells(line) for line in table]
    by_loss = any(line.by_loss for line in table)
    empty = {
        key for key in ("rank", "sparsity", "rho", "probe", "transfer") if all(row[key] in ("", "--") for row in cells)
    }
    if {line.trust for line in table} == {"client"}:
        empty.add("trust")
    if not any(_differs_outside(line) for line in table):
        empty.add("outside")
    if {line.unit for line in table} == {"example"}:
        empty.add("unit")
    more = [name for name in dict.fromkeys(n for line in table for n in line.varied) if name not in COLUMNS]
    names = {**dict(list(COLUMNS.items())[:3]), **{name: name for name in more}, **dict(list(COLUMNS.items())[3:])}
    keys = [key for key in names if key not in empty]
    colours = looks([(line.method, line.name) for line in table])
    return Table(
        columns=tuple(measured(table) if key == "accuracy" and by_loss else names[key] for key in keys),
        rows=tuple(
            Row(
                cells=tuple(row.get(key, "--") for key in keys),
                style=_style(line),
                group="no epsilon target" if line.epsilon_target is None else f"epsilon {line.epsilon_target:g}",
                colour=colours[line.name][0],
            )
            for line, row in zip(table, cells, strict=True)
        ),
        optional=tuple(keys.index(key) for key in (*OPTIONAL, *(LESS if more else ())) if key in keys),
    )


def _style(line: Line) -> RowKind:
    if line.private is False:
        return "no-epsilon"
    return "reference" if line.method == PROBE else ""


def _cells(line: Line) -> dict[str, str]:
    mark = f" {CHANCE_MARK}" if line.beats_chance is False else ""
    sd = "" if line.sd is None else f" ± {shown(line, line.sd)}"
    done, planned = len(line.done), len(line.runs)
    return {
        "method": line.label,
        **{name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in line.varied.items()},
        "rank": _number(line.setting("rank") or None, "d"),
        "sparsity": _number(line.setting("sparsity"), "g"),
        "epsilon": _epsilon(line),
        "outside": "--" if not line.private or line.epsilon_outside is None else epsilon_words(line.epsilon_outside),
        "unit": line.unit,
        "trust": line.trust,
        "rho": _number(line.rho or None, ".2f"),
        "accuracy": "--" if line.mean is None else f"{shown(line, line.mean)}{sd}{mark}",
        "error": _number(line.standard_error, ".1f", 100),
        "n": str(done) if done == planned else f"{done}/{planned}",
        "probe": _number(line.over_probe, "+.1f", 100),
        "uplink": "--" if line.uplink is None else human_bytes(line.uplink),
        "saved": "--" if line.saved is None else f"{line.saved:.1f}x",
        "transfer": _number(line.transfer, ".3g"),
        "seconds": _number(line.training_seconds, ".3g"),
    }


def _epsilon(line: Line) -> str:
    if line.private is None:
        return "--" if line.epsilon_target is None else f"({line.epsilon_target:g})"
    return NOT_PRIVATE if not line.private or line.epsilon is None else epsilon_words(line.epsilon)


def _differs_outside(line: Line) -> bool:
    """Whether a reader outside has a smaller epsilon than the clients of a sum."""
    return bool(line.private) and line.epsilon_outside is not None and line.epsilon_outside != line.epsilon


def _number(value: float | None, form: str, scale: float = 1) -> str:
    return "--" if value is None else format(value * scale if scale != 1 else value, form)


def notes(table: Sequence[Line]) -> list[str]:
    """What the columns and marks mean, in sentences."""
    kinds = {run.held_out for line in table for run in line.runs}
    splits = [] if kinds == {True} else ["the public test split"]
    splits += ["held-out training rows, which no epsilon covers"] if True in kinds else []
    word = "Loss" if any(line.by_loss for line in table) else "Accuracy"
    found = [
        f"{word}: mean ± standard deviation over n seeds on {' or '.join(splits)}; s.e.: its standard error in "
        "points, from the spread over seeds and the size of the test split.",
        "Uplink: payload of one client in one round; saved: how many times smaller it is than a dense update.",
    ]
    found += [CLIENT_LEVEL] if any(line.unit == "client" for line in table) else []
    if any(line.varied for line in table):
        found.append(
            "The best of these settings is chosen on these rows: fedlsg compare --search chooses on other rows."
        )
    found += trust_words(line.trust for line in table)
    if any(_differs_outside(line) for line in table):
        found.append(
            "Epsilon is against those who know most, under trust=secure the colluders of a sum with the server; "
            "outside: the epsilon against a reader of the weights alone."
        )
    if any(line.rho for line in table):
        found.append(f"rho: norm of a step's noise over the clip norm. {RHO_MEANING}")
    links = dict.fromkeys(run.link for line in table if line.transfer is not None for run in line.runs if run.link)
    found += [f"Transfer: seconds that the messages of a run would take on {link}." for link in links]
    if any(line.over_probe is not None for line in table):
        found.append("Over probe: points above the private linear probe at the same epsilon.")
    if any(line.beats_chance is False for line in table):
        levels = sorted({line.chance.level for line in table if line.chance is not None})
        found.append(f"{CHANCE_NOTE} ({', '.join(f'{100 * level:.1f} %' for level in levels)}).")
    return found


def table_markdown(table: Sequence[Line], more: Sequence[str] = ()) -> str:
    """A Markdown table, its notes and ``more`` of them, and what did not finish."""
    details = {**variants(table), **unfinished(table)}
    parts = [markdown(comparison_table(table)), *notes(table), *more]
    parts += ["", *(f"- `{name}`: {_plain(text)}" for name, text in details.items())] if details else []
    return "\n".join(parts) + "\n"


def markdown(table: Table) -> str:
    """The columns and rows of a table in Markdown, and an empty line."""
    head, *rows = [
        "| " + " | ".join(map(_plain, cells)) + " |" for cells in (table.columns, *(row.cells for row in table.rows))
    ]
    return "\n".join([head, "|" + "---|" * len(table.columns), *rows]) + "\n"


def variants(table: Sequence[Line]) -> Mapping[str, str]:
    """The settings that numbered labels stand for."""
    details = {line.label: line.runs[0].detail for line in table}
    return {label: detail for label, detail in details.items() if detail and detail not in label}


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def unfinished(table: Sequence[Line]) -> Mapping[str, str]:
    """Why a run is not in the means, by its name."""
    runs = [run for line in table for run in line.runs]
    return {
        run.name: f"{run.status}: {run.reason}"
        if run.reason
        else run.status + (f" after {len(run.rows)} rounds" if run.rows else "")
        for run in runs
        if not run.done
    }
