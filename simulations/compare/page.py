"""report.html of many runs: the table, the figures, what failed, and what the numbers do and do not mean."""

from collections.abc import Sequence

from simulations.compare import bytes_axis
from simulations.compare.bytes_axis import PLAIN, View
from simulations.compare.lines import PROBE, Line
from simulations.compare.plots import figures
from simulations.compare.table import comparison_table, notes, unfinished, variants
from simulations.report.facts import HELD_OUT, epsilon_section, made_section
from simulations.report.figure import picture
from simulations.report.page import render
from simulations.report.sections import Code, Page, Part, Section, Text, facts_of
from simulations.report.words import NOT_PRIVATE
from simulations.rundir.results import Result

BARS = "Bars show one standard deviation over seeds."
CAPTIONS = {
    "accuracy-epsilon": f"Test accuracy at each epsilon. {BARS} The dotted line, if there is one, is the accuracy of "
    "guessing. Dashed horizontal lines are methods without privacy.",
    "accuracy-bytes": f"Test accuracy against the payload bytes that all clients sent in the whole run. {BARS} Filled "
    "marks have the largest epsilon, or none.",
    "accuracy-total-bytes": "Test accuracy against the payload bytes of all clients in the whole run: uplink on the "
    f"left, uplink plus downlink on the right. Each row has one epsilon, delta and trust. {BARS} Filled marks are "
    f"private, hollow marks are {NOT_PRIVATE}.",
    "learning-curves": "Test accuracy after each round: mean over seeds. The band reaches from the worst to the best "
    "seed.",
}
GRID = "The grid; fedlsg compare --grid grid.toml runs it again:"


def page(
    title: str, results: Sequence[Result], table: Sequence[Line], *, command: str = "", grid: str = "",
    view: View = PLAIN,
) -> str:  # fmt: skip
    """The page of a comparison. ``command`` made it; ``grid`` is the text of its grid.toml."""
    done = [run for run in results if run.done]
    return render(
        Page(
            title=title,
            lead=lead(results, table),
            warnings=tuple(warnings(table)),
            sections=(
                Section(parts=tuple(_table(table))),
                *_panels(table, view),
                Section(parts=tuple(picture(figure, CAPTIONS[name]) for name, figure in figures(table, view).items())),
                epsilon_section(results),
                *_unfinished(table),
                made_section(done, Code(text=command), Code(text=grid, note=GRID)),
            ),
        )
    )


def _table(table: Sequence[Line]) -> list[Part]:
    """The table, what its columns mean, and what numbered labels stand for."""
    parts: list[Part] = [comparison_table(table), *(Text(words=note, style="note") for note in notes(table))]
    named = variants(table)
    return [*parts, facts_of(named)] if named else parts


def _panels(table: Sequence[Line], view: View) -> list[Section]:
    """The tables of the bytes axis, if the view has it."""
    tables = [bytes_axis.panel_table(panel) for panel in (bytes_axis.panels(table) if view.bytes else [])]
    note = Text(words=bytes_axis.NOTE, style="note")
    return [Section(title="Accuracy against bytes", parts=(*tables, note))] if tables else []


def _unfinished(table: Sequence[Line]) -> list[Section]:
    left = unfinished(table)
    return [Section(title="Not in the means", parts=(facts_of(left),))] if left else []


def lead(results: Sequence[Result], table: Sequence[Line]) -> str:
    """How many runs, settings and seeds."""
    done = sum(run.done for run in results)
    seeds = sorted({run.settings["seed"] for run in results if "seed" in run.settings})
    shown_seeds = ", ".join(map(str, seeds)) if len(seeds) <= 12 else f"{seeds[0]} to {seeds[-1]}"
    return f"{done} of {len(results)} runs finished, {len(table)} settings, seeds {shown_seeds or '--'}."


def warnings(table: Sequence[Line]) -> list[str]:
    """What nobody may overlook: no privacy, no better than guessing, held-out accuracy, no linear probe."""
    found = []
    public = list(dict.fromkeys(line.name for line in table if line.private is False))
    if public:
        found.append(f"{NOT_PRIVATE}: {', '.join(public)}. No privacy is claimed for these runs.")
    lost = [
        line.name if line.epsilon_target is None else f"{line.name} at epsilon {line.epsilon_target:g}"
        for line in table
        if line.beats_chance is False
    ]
    if lost:
        found.append(f"Not better than guessing by three standard errors: {', '.join(lost)}.")
    private = [line for line in table if line.private]
    if private and not any(line.method == PROBE for line in private):
        found.append(
            "The private linear probe is missing. A private method is useful only if it is better than the probe: "
            f"add {PROBE} to the methods."
        )
    if any(run.held_out for line in table for run in line.runs):
        found.append(HELD_OUT)
    return found
