"""What a run left, for programs without fedlsg: ``fedlsg export`` of the model and of figures;
``payload``: payloads.

The model of a finished run is a folder that plain torch, or transformers, loads. Figures of a run
or a comparison are PDF, SVG and PNG for a column of a paper.
"""

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedlsg.owner_only import make_parents
from fedlsg.privacy import verify_extends
from fedlsg.simulations.compare.results.collect import kept_labels, read_runs
from fedlsg.simulations.compare.results.lines import (
    NO_LABELS,
    Labels,
    added_labels,
    check_labels,
    lines,
)
from fedlsg.simulations.compare.results.plots import figures
from fedlsg.simulations.models.encoder import save_pretrained
from fedlsg.simulations.models.encoder_source import find_encoder, load_tokenizer
from fedlsg.simulations.models.plain_torch import loader_of
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.earlier_runs.continuity import check_own_code
from fedlsg.simulations.planning.earlier_runs.weights_of_run import WeightsOfRun, remember_merged
from fedlsg.simulations.planning.trust import allow_code
from fedlsg.simulations.report.drawing.chart import Chart, legend_of
from fedlsg.simulations.report.page_of_run.run_charts import course
from fedlsg.simulations.report.pages.figure import (
    PIXELS,
    STYLE,
    draw_chart,
    legend_entries,
    panel_grid,
    save,
    use_style,
    wrap,
)
from fedlsg.simulations.report.terminals.terminal import checked, print_line, print_whole
from fedlsg.simulations.run.finished import checkpoint_model, left_model, without_adapters
from fedlsg.simulations.server.final_model import FinalModel
from fedlsg.simulations.settings.settings import Settings, all_settings, from_file
from fedlsg.simulations.storage.atomic_files import (
    check_writable,
    seal,
    write_atomically,
    writing_to,
)
from fedlsg.simulations.storage.examined import MODEL
from fedlsg.simulations.storage.lock import exclusive
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import WEIGHTS, write_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LOADER = "load.py"
"""Builds the model of plain torch and loads it; where the model is made of layers of torch."""
ABOUT = "fedlsg-run.json"
"""What config.json of a run says: in an exported folder that name belongs to transformers."""


def export_command(directory: str, out: str | None, merge_lora: bool, console: Console) -> None:
    """Write the folder, whole or not at all, and print how to load it.

    Raises ValueError for an unfinished run, an existing folder, a run without a model, and for LoRA
    that cannot be merged, or has to be.
    """
    run = checked(directory, MODEL, console)
    settings = run.read_config()
    if not run.summary.exists():
        raise ValueError(
            f"{directory} has not finished: continue it with fedlsg resume {directory}, then "
            "export it, or add --unfinished for its weights so far"
        )
    folder = Path(out or run.path / "export").expanduser().resolve()
    if folder.exists():
        raise ValueError(f"{folder} exists: nothing is overwritten, choose another --out")
    check_writable(folder.parent)
    try:
        final = left_model(run)
    except FileNotFoundError as error:
        raise ValueError(
            f"{directory} holds no {Path(error.filename).name}: restore it from a copy"
        ) from None
    lora, said = final.facts["lora"], final.facts["transformers"]
    if merge_lora:
        factors, final = final, without_adapters(final)
        if settings.public_rows is None:
            remember_merged(run, final.tensors, factors.tensors)
    elif lora and said:
        raise ValueError(
            f"{said['class']} of transformers has no place for LoRA's factors: add --merge-lora, "
            f"or load {run.path / WEIGHTS} with torch"
        )
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with writing_to(folder):
            make_parents(partial)
            if said:
                write_transformers(partial, final, settings)
            else:
                write_model(partial, final.tensors, final.facts, about=ABOUT)
                if loader := loader_of(final.facts):
                    write_atomically(partial / LOADER, loader.encode())
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print_whole(f"exported to {folder}", console)
    print_whole(how_to_load(folder, said), console)
    if (folder / LOADER).exists():
        print_whole(f"or, with its layers and the scale of inputs: {folder / LOADER}", console)


def export_unfinished(directory: str, console: Console) -> None:
    """Write the weights of the last checkpoint into an interrupted run, and print how another run
    starts from them: its ledger is in the same folder and goes on.

    A setting that this fedlsg does not have is left out, so runs of other versions have their
    weights, too. Raises ValueError for a finished run, one that a process uses, one whose model was
    another with that setting, and one whose ledger is not that of its checkpoint.
    """
    run = RunDir.open(directory)
    if run.summary.exists():
        raise ValueError(f"{directory} has finished: leave --unfinished out")
    settings, left_out = known_settings(run.read_raw_config())
    for name in left_out:
        print_line(f"{name} is no setting of this fedlsg: left out", console, "yellow")
    with exclusive(run):
        allow_code(run.path)
        base = prepare(replace(settings, device="cpu"))
        check_own_code(base, run)
        verify_extends(run.resume_point()[0]["ledgers"], run.ledgers)
        final = checkpoint_model(base, run)
        write_model(run.path, final.tensors, final.facts)
        WeightsOfRun(base, run).remember()
    print_whole(f"weights of round {final.facts['round']} in {run.path / WEIGHTS}", console)
    print_whole(f"another run goes on from them: fedlsg run ... --start-from {run.path}", console)


def known_settings(given: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The settings of a run as far as this fedlsg has them, and the names of the others."""
    try:
        return from_file(given), []
    except ValueError:
        known = all_settings()
        left_out = sorted(name for name in given if name.replace("-", "_") not in known)
        return from_file({n: v for n, v in given.items() if n not in left_out}), left_out


def write_transformers(folder: Path, final: FinalModel, settings: Settings) -> None:
    """What ``from_pretrained`` reads; the tokenizer too, if it is on this machine or on the hub."""
    try:
        save_pretrained(folder, final.tensors, final.facts["transformers"])
    except ImportError as error:
        raise ModuleNotFoundError(
            "text models need the text extra: pip install 'fedlsg[text]'"
        ) from error
    about: Mapping[str, Any] = {
        name: value for name, value in final.facts.items() if name != "transformers"
    }
    write_atomically(folder / ABOUT, seal(about, indent=2))
    # weights are the model; a user may have the tokenizer elsewhere
    with suppress(OSError, ValueError, ImportError):
        data_root = None if settings.data_dir is None else Path(settings.data_dir)
        source = find_encoder(str(final.facts["model"]), final.facts["options"].get("pretrained"))
        load_tokenizer(source, data_root).save_pretrained(folder)


def how_to_load(folder: Path, said: Mapping[str, Any] | None) -> str:
    """One line of Python."""
    if said is None:
        return f"model.load_state_dict(safetensors.torch.load_file({str(folder / WEIGHTS)!r}))"
    if said["head"] is None and said["pooling"] == "own":
        return f"transformers.{said['class']}.from_pretrained({str(folder)!r})"
    own_code = "" if said["pooling"] == "own" else ", trust_remote_code=True"
    given = f"{str(folder)!r}{own_code}"
    return f"transformers.AutoModelForSequenceClassification.from_pretrained({given})"


COLUMN = 3.3
"""Inches of a column of a paper with two."""
PAPER: Any = {
    **STYLE,
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
}
KINDS = ("pdf", "svg", "png")


def figures_command(
    directory: str, out: str | None, console: Console, labels: Labels = NO_LABELS
) -> None:
    """Write each chart in each form; ``labels``: see ``relabelled``. Raises ValueError for a folder
    that is neither a run nor a comparison.
    """
    if out is not None and (ending := Path(out).suffix.removeprefix(".")) in KINDS:
        raise ValueError(
            f"--out {out} names a file, and figures are a folder, each as {', '.join(KINDS)}: give "
            f"--out {Path(out).with_suffix('')}, and take its .{ending} files"
        )
    path = Path(directory).expanduser().resolve()
    folder = Path(out or f"figures-{path.name}").expanduser().resolve()
    charts = charts_of(path, console, labels)
    if not charts:
        raise ValueError(f"{directory} has no finished round: there is nothing to draw")
    with writing_to(folder):
        for name, chart in charts.items():
            for kind in KINDS:
                write_atomically(folder / f"{name}.{kind}", save_paper(chart, kind))
    print_whole(f"{len(charts)} figures, each as {', '.join(KINDS)}, in {folder}", console)


def charts_of(path: Path, console: Console, labels: Labels = NO_LABELS) -> dict[str, Chart]:
    """By file name: of a run its rounds, of a comparison all its figures but heat maps, which have
    a table.
    """
    results = read_runs([path], say=lambda line: print_line(line, console, "yellow"))
    if len(results) == 1:
        (run,) = results
        found = {"": course(run)} if run.rows else {}
    else:
        plain = lines(results)
        check_labels(labels, (*plain.label, *plain.name))
        table = lines(results, added_labels(kept_labels([path]), labels))
        found = {name: made for name, made in figures(table).items() if isinstance(made, tuple)}
    named: dict[str, Chart] = {}
    for group, charts in found.items():
        for chart in charts:
            words = [group] if group and len(charts) == 1 else [group, chart.title]
            named["-".join(filter(None, map(_file_name, words)))] = chart
    return named


def _file_name(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


@partial(use_style, style=PAPER)
def paper(chart: Chart) -> "Figure":
    """One chart for a column of a paper: 3.3 inches wide, letters of 8 points, fonts in the
    file.
    """
    entries = -(-len(legend_of([chart])) // 2)
    figure, (axes,) = panel_grid(
        1, 1, (COLUMN, max(0.68 * COLUMN, chart.height / PIXELS * 0.7)), 0.16 * entries
    )
    draw_chart(axes, chart)
    axes.set_ylabel("" if chart.y.ticks else wrap(chart.y.label or chart.title))
    if found := legend_entries([axes]):
        figure.legend(found.values(), found.keys(), loc="outside lower left", ncols=2, fontsize=7)
    return figure


def save_paper(chart: Chart, kind: str) -> bytes:
    """The figure of ``paper`` as pdf, svg or png (600 dots an inch), the same bytes each time."""
    dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    return save(paper(chart), PAPER, format=kind, dpi=600, metadata=dated)
