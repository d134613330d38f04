"""The tables of an inspection, for terminal and page, and the rows of its CSV files."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from operator import itemgetter

from fedlsg.simulations.inspection import Subject
from fedlsg.simulations.inspection.energy import PRIVATE, KeptRows, kinds_of, whole
from fedlsg.simulations.inspection.measure import SOURCES, ClipRow, Inspection, LayerRow
from fedlsg.simulations.inspection.sparsified import Sparsified
from fedlsg.simulations.report.pages.page import RowKind, Table
from fedlsg.simulations.report.pages.table import Column, make_table
from fedlsg.simulations.storage.atomic_files import Record

SHOWN_SPARSITY = 0.3
"""Sparsity of the energies that are shown if the method itself freezes no units."""
SHOWN_RANK = 8
"""Rank of the residuals that are shown, at most, if the method itself has none."""
CHOICES = ("top", "bottom", "random")
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
"""What a mask keeps, by the first word of its choice."""
MEANING = (
    "Asymmetry: the Kolmogorov-Smirnov distance between the deviations on a direction and the same "
    "with the sign turned, mean over random directions. By chance: the same if each sign were "
    "random, and its 95 % quantile."
)


def shown_tables(subject: Subject, found: Inspection) -> list[Table]:
    """What the terminal shows."""
    kept = [summary_table(found.kept), *layer_tables(found.kept)] if found.kept else []
    own = (layer_table(subject, found), energy_table(subject, found), clip_table(found))
    return [*kept, *masked_tables(found.sparsified), *own]


def shown_sparsity(subject: Subject) -> float:
    """The sparsity of the energies that are shown: that of the method if it freezes units."""
    mask = subject.base.method.mask
    return mask.sparsity if mask.units and mask.sparsity else SHOWN_SPARSITY


def layer_table(subject: Subject, found: Inspection) -> Table:
    """A row for each layer: stable rank, and residuals at the rank of the method by source."""
    ranks = sorted({row.rank for row in found.residuals})
    own = subject.base.method.carrier.rank
    rank = (
        own
        if own in ranks
        else max((r for r in ranks if r <= SHOWN_RANK), default=ranks[0] if ranks else 0)
    )
    lost = {(row.layer, row.source): row.residual for row in found.residuals if row.rank == rank}

    def column(source: str) -> Column:
        return Column(source, lambda row: lost.get((row.layer, source)), ".2f")

    return make_table(
        [
            Column("layer", _layer),
            Column("shape", lambda row: f"{row.shape[0]}x{row.shape[1]}"),
            Column("stable rank", "stable_rank", ".2f"),
            *map(column, found.sources),
        ],
        found.layers,
        style=_style,
        title=f"Share of the length of the batch gradient that carriers of rank {rank} lose, by "
        "the source of carriers",
        note=sources_words(found.sources),
    )


def sources_words(sources: Iterable[str]) -> str:
    """What carriers are made from, by the headings of their columns."""
    return "; ".join(f"{name}: {SOURCES[name]}" for name in sources) + "."


def energy_table(subject: Subject, found: Inspection) -> Table:
    """A row for each layer: energy of its gradient in the units that LSG keeps at the sparsity, and
    in others.
    """
    p = shown_sparsity(subject)
    kept = {(row.layer, row.choice): row for row in found.energies if row.sparsity == p}

    def column(choice: str, side: str, of: str) -> Column:
        return Column(f"{choice} {side}", lambda row: getattr(kept[row.layer, choice], of), ".2f")

    sides = (
        column(choice, *side) for choice in CHOICES for side in (("out", "rows"), ("in", "columns"))
    )
    mask = subject.base.method.mask
    keeps = "the run keeps" if mask.units and mask.sparsity else "lsg would keep"
    title = f"Share of the energy of the batch gradient in units that {keeps} at p = {p:g}"
    columns = [Column("layer", _layer), *sides]
    return make_table(columns, found.layers, style=_style, title=title, note=UNITS_WORDS)


def clip_table(found: Inspection) -> Table:
    """A row for each mask: the norms, and how many examples are clipped where the run clips; the
    run's own mask first.
    """

    def norm(name: str, level: float) -> Column:
        return Column(name, lambda row: row.clipping.norms[level], ".3g")

    clip = [
        Column("clipped", lambda row: 100 * row.clipping.clipped, "{:.1f} %".format),
        Column("mean factor", "clipping.mean_factor", ".3f"),
    ]
    rows = (found.own, *found.others)
    there = dict.fromkeys(row.choice.partition(" ")[0] for row in rows)
    legend = [f"{name}: {CHOICE_WORDS[name]}" for name in there if name in CHOICE_WORDS]
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
    """The share of each parameter in the squared length of an example."""
    columns = [Column("parameter", itemgetter(0)), Column("share", itemgetter(1), ".3f")]
    return make_table(columns, found.own.shares.items())


def _layer(row: LayerRow) -> str:
    return row.layer.removesuffix(".weight")


def _style(row: LayerRow) -> RowKind:
    return "" if row.treated == "carried" else "dim"


def summary_table(rows: KeptRows) -> Table:
    """A row for each kind of carriers, form and rank: energy kept of all carried layers together,
    by round.
    """
    together = whole(rows)

    def column(round: int) -> Column:
        return Column(f"round {round}", lambda at: together[round, at[0], at[2], at[1]], ".3f")

    columns = [
        Column("carriers from", itemgetter(0)),
        Column("form", itemgetter(2), left=True),
        Column("r", itemgetter(1)),
        *map(column, sorted({row.round for row in rows})),
    ]
    places = [(kind, *place) for place in _places(rows) for kind in kinds_of(rows)]
    return make_table(
        columns,
        places,
        style=lambda at: "dim" if at[0] == PRIVATE else "",
        group=lambda at: f"r = {at[1]}, form {at[2]}",
        title="Share of the energy of the mean gradient that carriers keep at the start of a "
        "round, all carried layers",
    )


def _places(rows: KeptRows) -> list[tuple[int, str]]:
    """Ranks and forms."""
    return list(dict.fromkeys((row.rank, row.form) for row in rows))


def layer_tables(rows: KeptRows) -> list[Table]:
    """For each rank and form a table of the last round: a row for each layer, a column for each
    kind of carriers.
    """
    last = max(row.round for row in rows)
    return [
        _by_layer([r for r in rows if (r.round, r.rank, r.form) == (last, *at)], last, *at)
        for at in _places(rows)
    ]


def _by_layer(rows: KeptRows, last: int, rank: int, form: str) -> Table:
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
    """The numbers of random masks; none of a method without them."""
    if found is None:
        return []

    def spread(name: str, value: str) -> Column:
        return Column(
            name, lambda row: f"{getattr(row, value):.3f} ± {getattr(row, f'{value}_sd'):.3f}"
        )

    noise = (
        Column("noise", "noise", ".4f"),
        Column("sqrt(1 - p)", "expected_noise", ".4f"),
    )
    clip = (
        spread("kept coordinates", "relaxed"),
        Column("1 / sqrt(1 - p)", lambda row: 1 / row.expected_noise, ".3f"),
        spread("of the whole", "kept"),
    )
    parts = zip(("Noise", "clipped gradient"), (noise, clip), found.measured, strict=True)
    there = [(name, columns) for name, columns, measured in parts if measured]
    symmetry = [
        Column("mask", lambda one: f"p = {one.sparsity:g}" if one.sparsity else "none"),
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
    tables = []
    if there:
        names = " and ".join(name for name, _ in there)
        columns = [Column("p", "sparsity", "g"), *(one for _, group in there for one in group)]
        title = f"{names[:1].upper()}{names[1:]} under random masks of rate p"
        tables = [make_table(columns, found.rows, title=title)]
    title = "Symmetry of the deviations of examples from their mean gradient"
    tables.append(make_table(symmetry, found.deviations, title=title))
    if found.counts is not None:
        tables.append(make_table(counts, [found.counts], title="How often a coordinate was frozen"))
    return tables


def rows_of(found: Inspection) -> dict[str, list[Record]]:
    """Rows of every CSV file by its name."""
    return {
        "layers": [
            {**asdict(row), "shape": f"{row.shape[0]}x{row.shape[1]}"} for row in found.layers
        ],
        "residuals": [asdict(row) for row in found.residuals],
        "energy": [asdict(row) for row in found.energies],
        **({"carriers": [asdict(row) for row in found.kept]} if found.kept else {}),
        **({} if found.sparsified is None else _masked_rows(found.sparsified)),
        "clipping": [
            clip_numbers("the run's own", found.own, found.mechanism.clips),
            *(clip_numbers(row.choice, row, found.mechanism.clips) for row in found.others),
        ],
    }


def _masked_rows(found: Sparsified) -> Mapping[str, list[Record]]:
    symmetry = [
        {name: value for name, value in vars(d).items() if name != "plane"}
        for d in found.deviations
    ]
    tables: dict[str, list[Record]] = {
        "sparsified": [vars(row) for row in found.rows],
        "symmetry": symmetry,
    }
    if found.counts is not None:
        laws = zip(found.counts.shares.tolist(), found.counts.expected.tolist(), strict=True)
        tables["mask-counts"] = [
            {"frozen": n, "share": s, "independent": law} for n, (s, law) in enumerate(laws)
        ]
    return tables


def clip_numbers(name: str, row: ClipRow, clips: bool) -> Record:
    """One line of the table of clips; of a run that does not clip the norms alone."""
    measured = row.clipping
    return {
        "kept_units": name,
        "sparsity": row.sparsity,
        "kept_coordinates": row.kept,
        **({"clipped": measured.clipped, "mean_factor": measured.mean_factor} if clips else {}),
        "dropped": measured.dropped,
        **{f"norm_q{level:g}": value for level, value in measured.norms.items()},
    }
