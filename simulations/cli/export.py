"""``fedlsg export``: the model of a run, or figures, for programs without fedlsg.

The model is a folder that plain torch, or transformers, loads. Figures of a run or a comparison are
PDF, SVG and PNG for a column of a paper.
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


LOADER_FILE = "load.py"
"""Program that builds the model with torch and loads it, for models of torch's own layers."""
ABOUT_FILE = "fedlsg-run.json"
"""The config.json of a run under another name, because transformers has a file config.json."""


def export_command(directory: str, out: str | None, merge_lora: bool, console: Console) -> None:
    """Write the folder, whole or not at all, and print how to load it.

    out: the folder; None: ``export`` in the run.
    merge_lora: whether to merge the factors of LoRA into the weights.

    Raises ValueError for an unfinished run, an existing folder, a run without a model, for LoRA
    that cannot be merged, and for LoRA that must be merged for transformers.
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
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with writing_to(folder):
            make_parents(temporary)
            if said:
                write_transformers(temporary, final, settings)
            else:
                write_model(temporary, final.tensors, final.facts, facts_file=ABOUT_FILE)
                if loader := loader_of(final.facts):
                    write_atomically(temporary / LOADER_FILE, loader.encode())
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print_whole(f"exported to {folder}", console)
    print_whole(how_to_load(folder, said), console)
    if (folder / LOADER_FILE).exists():
        print_whole(f"or, with its layers and the scale of inputs: {folder / LOADER_FILE}", console)


def export_unfinished(directory: str, console: Console) -> None:
    """Write the weights of the last checkpoint into an interrupted run, and print how to use them.

    Another run may start from them and continue the ledger in the same folder. Settings that this
    version of fedlsg does not have are left out. Raises ValueError for a finished run, for one in
    use, for one whose model differs without these settings, and for one whose ledger is not that of
    its checkpoint.
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
    """The settings of a run that this version of fedlsg has, and the names of the others."""
    try:
        return from_file(given), []
    except ValueError:
        known = all_settings()
        left_out = sorted(name for name in given if name.replace("-", "_") not in known)
        settings = {name: value for name, value in given.items() if name not in left_out}
        return from_file(settings), left_out


def write_transformers(folder: Path, final: FinalModel, settings: Settings) -> None:
    """Write the files of ``from_pretrained``, with the tokenizer if it is found."""
    try:
        save_pretrained(folder, final.tensors, final.facts["transformers"])
    except ImportError as error:
        raise ModuleNotFoundError(
            "text models need the text extra: pip install 'fedlsg[text]'"
        ) from error
    about: Mapping[str, Any] = {
        name: value for name, value in final.facts.items() if name != "transformers"
    }
    write_atomically(folder / ABOUT_FILE, seal(about, indent=2))
    # without it the model is complete, and a user may have the tokenizer elsewhere
    with suppress(OSError, ValueError, ImportError):
        data_root = None if settings.data_dir is None else Path(settings.data_dir)
        source = find_encoder(str(final.facts["model"]), final.facts["options"].get("pretrained"))
        load_tokenizer(source, data_root).save_pretrained(folder)


def how_to_load(folder: Path, said: Mapping[str, Any] | None) -> str:
    """The line of Python that loads the model. said: facts for transformers; None for torch."""
    if said is None:
        return f"model.load_state_dict(safetensors.torch.load_file({str(folder / WEIGHTS)!r}))"
    if said["head"] is None and said["pooling"] == "own":
        return f"transformers.{said['class']}.from_pretrained({str(folder)!r})"
    own_code = "" if said["pooling"] == "own" else ", trust_remote_code=True"
    given = f"{str(folder)!r}{own_code}"
    return f"transformers.AutoModelForSequenceClassification.from_pretrained({given})"


COLUMN_INCHES = 3.3
"""Inches of a column of a paper with two."""
PAPER_STYLE: Any = {
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
FORMATS = ("pdf", "svg", "png")


def figures_command(
    directory: str, out: str | None, console: Console, labels: Labels = NO_LABELS
) -> None:
    """Write each chart in each format; ``labels``: see ``relabelled``.

    Raises ValueError for a folder that is neither a run nor a comparison.
    """
    if out is not None and (ending := Path(out).suffix.removeprefix(".")) in FORMATS:
        raise ValueError(
            f"--out {out} names a file, and figures are a folder, each as {', '.join(FORMATS)}: "
            f"give --out {Path(out).with_suffix('')}, and take its .{ending} files"
        )
    path = Path(directory).expanduser().resolve()
    folder = Path(out or f"figures-{path.name}").expanduser().resolve()
    charts = charts_of(path, console, labels)
    if not charts:
        raise ValueError(f"{directory} has no finished round: there is nothing to draw")
    with writing_to(folder):
        for name, chart in charts.items():
            for kind in FORMATS:
                write_atomically(folder / f"{name}.{kind}", save_paper(chart, kind))
    print_whole(f"{len(charts)} figures, each as {', '.join(FORMATS)}, in {folder}", console)


def charts_of(path: Path, console: Console, labels: Labels = NO_LABELS) -> dict[str, Chart]:
    """Charts by file name: of a run over rounds, of a comparison all figures but heat maps."""
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


@partial(use_style, style=PAPER_STYLE)
def paper(chart: Chart) -> "Figure":
    """One chart for a column of a paper: 3.3 inches wide, letters of 8 points, fonts in it."""
    entries = -(-len(legend_of([chart])) // 2)
    figure, (axes,) = panel_grid(
        1,
        1,
        (COLUMN_INCHES, max(0.68 * COLUMN_INCHES, chart.height / PIXELS * 0.7)),
        0.16 * entries,
    )
    draw_chart(axes, chart)
    axes.set_ylabel("" if chart.y.ticks else wrap(chart.y.label or chart.title))
    if found := legend_entries([axes]):
        figure.legend(found.values(), found.keys(), loc="outside lower left", ncols=2, fontsize=7)
    return figure


def save_paper(chart: Chart, kind: str) -> bytes:
    """The figure of ``paper`` as pdf, svg or png (600 dots an inch), the same bytes each time."""
    dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    return save(paper(chart), PAPER_STYLE, format=kind, dpi=600, metadata=dated)
