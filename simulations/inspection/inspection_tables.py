"""The tables of an inspection, for terminal and page, and the rows of its CSV files."""

from collections.abc import Iterable
from dataclasses import asdict
from operator import itemgetter

from fedlsg.frame.forms import FormName
from fedlsg.simulations.inspection import Subject
from fedlsg.simulations.inspection.energy import PRIVATE, KeptRows, kinds_of, whole
from fedlsg.simulations.inspection.measure import SOURCES, ClipRow, Inspection, LayerRow
from fedlsg.simulations.inspection.sparsified import Sparsified
from fedlsg.simulations.report.pages.page import RowKind, Table
from fedlsg.simulations.report.pages.table import Column, make_table
from fedlsg.simulations.storage.atomic_files import Record

SHOWN_SPARSITY = 0.3
"""Sparsity of the energies in the table if the method itself freezes no units."""
SHOWN_RANK = 8
"""Rank of the residuals in the table at most, if the method itself has none."""
CHOICES = ("top", "bottom", "random")
"""Choices of units, in the order of columns."""
UNITS_WORDS = (
    "top, bottom: units of largest and of smallest importance, by the weight; random: the mean "
    "over draws. out: rows of the gradient; in: its columns."
)
CHOICE_WORDS = {
    "all": "every coordinate",
    "top": "units of largest importance",
    "bottom": "units of smallest importance",
    "random": "units drawn at random",
    "uniform": "coordinates drawn uniformly at random",
    "magnitude": "coordinates of the largest weights",
    "energy": "entries of the largest predicted energy",
    "own": "what the user's function chooses",
    "drop": "what pruning and the drop of a step leave",
    "by": "coordinates ranked by the named source",
}
"""By the first word of a choice, what the mask keeps."""
SYMMETRY_NOTE = (
    "Asymmetry: the Kolmogorov-Smirnov distance between the deviations on a direction and the same "
    "with the sign turned, mean over random directions. By chance: the same if each sign were "
    "random, and its 95 % quantile."
)


def shown_tables(subject: Subject, found: Inspection) -> list[Table]:
    """The tables on the terminal."""
    kept = [summary_table(found.kept), *layer_tables(found.kept)] if found.kept else []
    always = (layer_table(subject, found), energy_table(subject, found), clip_table(found))
    return [*kept, *masked_tables(found.sparsified), *always]


def shown_sparsity(subject: Subject) -> float:
    """The sparsity of the energies in the table: that of the method if it freezes units."""
    mask = subject.base.method.mask
    return mask.sparsity if mask.units and mask.sparsity else SHOWN_SPARSITY


def layer_table(subject: Subject, found: Inspection) -> Table:
    """A row for each layer: stable rank, and residuals at the rank of the method by source."""
    ranks = sorted({row.rank for row in found.residuals})
    rank = subject.base.method.carrier.rank
    if rank not in ranks:
        least = ranks[0] if ranks else 0
        rank = max((each for each in ranks if each <= SHOWN_RANK), default=least)
    lost = {(row.layer, row.source): row.residual for row in found.residuals if row.rank == rank}

    def column(source: str) -> Column:
        return Column(source, lambda row: lost.get((row.layer, source)), ".2f")

    return make_table(
        [
            Column("layer", layer_name),
            Column("shape", lambda row: f"{row.shape[0]}x{row.shape[1]}"),
            Column("stable rank", "stable_rank", ".2f"),
            *map(column, found.sources),
        ],
        found.layers,
        style=layer_style,
        title=f"Share of the length of the batch gradient that carriers of rank {rank} lose, by "
        "the source of carriers",
        note=sources_words(found.sources),
    )


def sources_words(sources: Iterable[str]) -> str:
    """The note on the columns of a table: what carriers are made from."""
    return "; ".join(f"{name}: {SOURCES[name]}" for name in sources) + "."


def energy_table(subject: Subject, found: Inspection) -> Table:
    """A row for each layer: energy of its gradient in the units that LSG keeps, and in others."""
    p = shown_sparsity(subject)
    kept = {(row.layer, row.choice): row for row in found.energies if row.sparsity == p}

    def column(choice: str, side: str, field: str) -> Column:
        return Column(
            f"{choice} {side}", lambda row: getattr(kept[row.layer, choice], field), ".2f"
        )

    sides = []
    for choice in CHOICES:
        sides += [column(choice, "out", "rows"), column(choice, "in", "columns")]
    mask = subject.base.method.mask
    keeps = "the run keeps" if mask.units and mask.sparsity else "lsg would keep"
    title = f"Share of the energy of the batch gradient in units that {keeps} at p = {p:g}"
    columns = [Column("layer", layer_name), *sides]
    return make_table(columns, found.layers, style=layer_style, title=title, note=UNITS_WORDS)


def clip_table(found: Inspection) -> Table:
    """A row for each mask, the run's own first: norms, and if the run clips the clipped share."""

    def norm(name: str, level: float) -> Column:
        return Column(name, lambda row: row.clipping.norms[level], ".3g")

    clip = [
        Column("clipped", lambda row: 100 * row.clipping.clipped, "{:.1f} %".format),
        Column("mean factor", "clipping.mean_factor", ".3f"),
    ]
    rows = (found.own, *found.others)
    names = dict.fromkeys(row.choice.partition(" ")[0] for row in rows)
    legend = [f"{name}: {CHOICE_WORDS[name]}" for name in names if name in CHOICE_WORDS]
    columns = [
        Column("kept", lambda row: f"{row.choice}{' (the run)' if row is found.own else ''}"),
        Column("p", "sparsity", "g"),
        Column("values", "kept", ","),
        *(clip if found.mechanism.clips else ()),
        norm("median norm", 0.5),
        norm("95 % norm", 0.95),
        norm("largest", 1.0),
    ]
    return make_table(
        columns,
        rows,
        style=lambda row: "own" if row is found.own else "",
        title="What the clip does to single examples"
        if found.mechanism.clips
        else "Norms of the gradients of single examples, which this run does not clip",
        note=f"p: share that is frozen. Kept: {'; '.join(legend)}.",
    )


def share_table(found: Inspection) -> Table:
    """A row for each parameter: its share of the squared norm of an example."""
    columns = [Column("parameter", itemgetter(0)), Column("share", itemgetter(1), ".3f")]
    return make_table(columns, found.own.shares.items())


def layer_name(row: LayerRow) -> str:
    return row.layer.removesuffix(".weight")


def layer_style(row: LayerRow) -> RowKind:
    return "" if row.treated == "carried" else "dim"


def summary_table(rows: KeptRows) -> Table:
    """A row for each kind of carriers, rank and form: energy kept of all layers, by round."""
    together = whole(rows)

    def column(round: int) -> Column:
        def energy(line: tuple[str, int, FormName]) -> float:
            kind, rank, form = line
            return together[round, kind, form, rank]

        return Column(f"round {round}", energy, ".3f")

    columns = [
        Column("carriers from", itemgetter(0)),
        Column("form", itemgetter(2), left=True),
        Column("r", itemgetter(1)),
        *map(column, sorted({row.round for row in rows})),
    ]
    lines = [(kind, rank, form) for rank, form in ranks_and_forms(rows) for kind in kinds_of(rows)]
    return make_table(
        columns,
        lines,
        style=lambda line: "dim" if line[0] == PRIVATE else "",
        group=lambda line: f"r = {line[1]}, form {line[2]}",
        title="Share of the energy of the mean gradient that carriers keep at the start of a "
        "round, all carried layers",
    )


def ranks_and_forms(rows: KeptRows) -> list[tuple[int, FormName]]:
    """The ranks and forms in the rows, in their order."""
    return list(dict.fromkeys((row.rank, row.form) for row in rows))


def layer_tables(rows: KeptRows) -> list[Table]:
    """For each rank and form, a table of the last round."""
    return [last_round_table(rows, rank, form) for rank, form in ranks_and_forms(rows)]


def last_round_table(all_rows: KeptRows, rank: int, form: FormName) -> Table:
    """A row for each layer, a column for each kind of carriers: energy kept in the last round."""
    last = max(row.round for row in all_rows)
    rows = [row for row in all_rows if (row.round, row.rank, row.form) == (last, rank, form)]
    energies = {(row.layer, row.carriers): row.energy for row in rows}

    def column(kind: str) -> Column:
        return Column(kind, lambda layer: energies[layer, kind], ".3f")

    columns = [
        Column("layer", lambda name: name.removesuffix(".weight")),
        *map(column, kinds_of(rows)),
    ]
    title = f"The same by layer in round {last}, form {form}, r = {rank}"
    return make_table(columns, dict.fromkeys(row.layer for row in rows), title=title)


def masked_tables(found: Sparsified | None) -> list[Table]:
    """The tables of random masks; empty for a method without them."""
    if found is None:
        return []

    tables = ratio_tables(found)
    symmetry = [
        Column("mask", lambda row: f"p = {row.sparsity:g}" if row.sparsity else "none"),
        Column("asymmetry", "asymmetry", ".3f"),
        Column("by chance", "chance", ".3f"),
        Column("95 %", "chance_95", ".3f"),
        Column("skewness", "skewness", ".3f"),
        Column("by chance", "chance_skewness", ".3f"),
    ]
    counts = [
        Column("ranking", "ranking"),
        Column("masks", "masks"),
        Column("mean", "mean", ".3f"),
        Column("sd", "sd", ".3f"),
        Column("sd, independent", "expected_sd", ".3f"),
        Column("total variation", "distance", ".4f"),
    ]
    title = "Symmetry of the deviations of examples from their mean gradient"
    tables.append(make_table(symmetry, found.deviations, title=title))
    if found.counts is not None:
        tables.append(make_table(counts, [found.counts], title="How often a coordinate was frozen"))
    return tables


def ratio_tables(found: Sparsified) -> list[Table]:
    """The table of ratios of noise and clipped gradient; none without noise and clip."""

    def with_sd(name: str, field: str) -> Column:
        return Column(
            name, lambda row: f"{getattr(row, field):.3f} ± {getattr(row, f'{field}_sd'):.3f}"
        )

    has_noise, clips = found.measured
    subjects: list[str] = []
    columns = [Column("p", "sparsity", "g")]
    if has_noise:
        subjects.append("noise")
        columns += [
            Column("noise", "noise", ".4f"),
            Column("sqrt(1 - p)", "expected_noise", ".4f"),
        ]
    if clips:
        subjects.append("clipped gradient")
        columns += [
            with_sd("kept coordinates", "relaxed"),
            Column("1 / sqrt(1 - p)", lambda row: 1 / row.expected_noise, ".3f"),
            with_sd("of the whole", "kept"),
        ]
    if not subjects:
        return []
    title = f"{' and '.join(subjects).capitalize()} under random masks of rate p"
    return [make_table(columns, found.rows, title=title)]


def rows_of(found: Inspection) -> dict[str, list[Record]]:
    """Rows of every CSV file by its name."""
    clips = found.mechanism.clips
    tables: dict[str, list[Record]] = {
        "layers": [
            {**asdict(row), "shape": f"{row.shape[0]}x{row.shape[1]}"} for row in found.layers
        ],
        "residuals": [asdict(row) for row in found.residuals],
        "energy": [asdict(row) for row in found.energies],
    }
    if found.kept:
        tables["carriers"] = [asdict(row) for row in found.kept]
    if found.sparsified is not None:
        tables |= _masked_rows(found.sparsified)
    tables["clipping"] = [
        clip_numbers("the run's own", found.own, clips),
        *(clip_numbers(row.choice, row, clips) for row in found.others),
    ]
    return tables


def _masked_rows(found: Sparsified) -> dict[str, list[Record]]:
    """Rows of the CSV files of random masks."""
    symmetry = [
        {name: value for name, value in vars(row).items() if name != "plane"}
        for row in found.deviations
    ]
    tables: dict[str, list[Record]] = {
        "sparsified": [vars(row) for row in found.rows],
        "symmetry": symmetry,
    }
    if found.counts is not None:
        laws = zip(found.counts.shares.tolist(), found.counts.expected.tolist(), strict=True)
        tables["mask-counts"] = [
            {"frozen": count, "share": share, "independent": independent}
            for count, (share, independent) in enumerate(laws)
        ]
    return tables


def clip_numbers(name: str, row: ClipRow, clips: bool) -> Record:
    """One line of clipping.csv; for a run that does not clip it has the norms alone."""
    measured = row.clipping
    return {
        "kept_units": name,
        "sparsity": row.sparsity,
        "kept_coordinates": row.kept,
        **({"clipped": measured.clipped, "mean_factor": measured.mean_factor} if clips else {}),
        "dropped": measured.dropped,
        **{f"norm_q{level:g}": value for level, value in measured.norms.items()},
    }
