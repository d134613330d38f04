"""``fedlsg.Run``: the results of a run directory, for Python and notebooks."""

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

from torch import nn

from fedlsg import strategies, user_code
from fedlsg.carriers import merge
from fedlsg.privacy.trained_weights import Writer
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.earlier_runs.continuity import check_own_code
from fedlsg.simulations.planning.trust import READS, allow_code
from fedlsg.simulations.report.page_of_run.run_charts import course
from fedlsg.simulations.report.pages.figure import plot, png
from fedlsg.simulations.report.pages.template import notebook_cell
from fedlsg.simulations.report.terminals.terminal import shown
from fedlsg.simulations.report.words import outcome
from fedlsg.simulations.server.final_model import FinalModel, final_model
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.examined import MODEL, RESULTS, open_run
from fedlsg.simulations.storage.messages.byte_lines import read_lines
from fedlsg.simulations.storage.results import read_clients, read_run
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import WEIGHTS, read_model
from fedlsg.simulations.workloads import Workload, build_model
from fedlsg.simulations.workloads.user_workload import make
from fedlsg.user_code.failure import without_exit
from fedlsg.user_code.short_traceback import short_traceback

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = list[dict[str, Any]]
"""One dict for each row: ``pandas.DataFrame(table)`` reads it."""
CURVES_PIXELS = 680
"""Width of the curves in a notebook, in CSS pixels."""
PLOT = "Accuracy (or loss) round by round, and against epsilon and bytes"
"""The description of the curves, for screen readers."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """The user's permission to run code of a run.

    workload: the run's workload, or its name; None to name none.
    method: the run's recipe, or its name; None to name none.
    trust: whether all code that the run names may run.
    """

    workload: str | Workload | Callable[[], Workload] | None = None
    method: str | Callable[..., Any] | None = None
    trust: bool = False

    def allow(self, run: Path, settings: Settings) -> None:
        """Let the workload of a run be loaded. Raises ValueError as ``allow_code``."""
        by_setting = {"workload": self.workload, "method": self.method}
        if self.workload is not None and not isinstance(self.workload, str):
            workloads.give(settings.workload, make(self.workload, settings.workload))
        if self.method is not None and not isinstance(self.method, str):
            strategies.give(settings.method, self.method)
        named = {setting: name for setting, name in by_setting.items() if isinstance(name, str)}
        needs = [
            setting for setting in READS if by_setting.get(setting) is None or setting in named
        ]
        used = allow_code(run, named, trust_code=self.trust, needs=needs)
        for setting in named.keys() - set(used):
            raise ValueError(
                f"the run's {setting} is {getattr(settings, setting)}, no code of its own: leave "
                "it out"
            )


class Run:
    """A run and its results, made by ``fedlsg.simulate`` and ``fedlsg.load_run``.

    A notebook shows it as a table and curves.

    An unfinished run has no ``summary``, and ``epsilon`` is that of its last finished round.
    """

    def __init__(
        self, directory: Path, *, plan: Base | None = None, code: Code | None = None
    ) -> None:
        self.directory = Path(directory)
        self._plan, self._code = plan, code or Code()

    @cached_property  # files of a finished run stay as they are
    def summary(self) -> Mapping[str, Any]:
        """The entries of summary.json. Raises FileNotFoundError for an unfinished run."""
        RunDir(self.directory).read_summary()  # raises for an unfinished run
        summary = read_run(self.directory).summary
        return {name: math.inf if value == "inf" else value for name, value in summary.items()}

    @cached_property  # files of a finished run stay as they are
    def rounds(self) -> Table:
        """The columns of rounds.csv, a row for each round; None if it was not evaluated."""
        return [row.columns for row in self._rows]

    @cached_property  # files of a finished run stay as they are
    def bytes(self) -> Table:
        """The columns of bytes.csv, a row for each message."""
        messages = RunDir(self.directory).messages
        return [asdict(line) for line in read_lines(messages)] if messages.exists() else []

    @cached_property  # files of a finished run stay as they are
    def clients(self) -> Table:
        """The columns of clients.csv, a row for each client, the worst first; for the owner only.

        A run has it whose partition gives clients names, or with ``evaluate_clients``; else it is
        empty. ``epsilon`` is None where none is claimed.
        """
        return read_clients(RunDir(self.directory))

    @property
    def epsilon(self) -> float:
        """The largest epsilon of a client, at ``summary["delta"]``; infinite if none is claimed."""
        epsilon = read_run(self.directory).epsilon_max
        return math.inf if epsilon is None else epsilon

    @cached_property  # files of a finished run stay as they are
    @without_exit()
    def model(self) -> nn.Module:
        """The trained module as it was evaluated, on the CPU and in evaluation mode.

        LoRA is merged into linear layers. Code of the run's own runs only if you ran it before,
        name it or trust it (``load_run``). If code or data of the run are missing here, it raises
        the error of loading the workload: then load model.safetensors into a module of your own.
        """
        run = RunDir(self.directory)
        settings = run.read_config()
        if self._plan is None:
            self._code.allow(run.path, settings)
        if self._plan is None:
            base = prepare(replace(settings, device="cpu"))
            check_own_code(base, run)
        else:
            base = self._plan  # of this process: it holds the code and data that it ran
        has_ended = run.summary.exists() and (run.path / WEIGHTS).exists()
        final = left_model(run) if has_ended else checkpoint_model(base, run)
        lora = final.facts["lora"]
        if lora is not None and not lora["merges"]:
            model = base.initial.model().cpu()
        else:
            model = build_model(base.workload, settings.model, settings.seed)
            final = final if lora is None else without_adapters(final)
        writer = Writer()
        writer.begin(dict(model.named_parameters()))
        model.load_state_dict(final.tensors)
        writer.note(dict(model.named_parameters()))
        return model.eval()

    def plot(self) -> "Figure":
        """A figure of accuracy, loss and metrics by round, and against epsilon and bytes.

        A notebook's cell shows it, once; ``plot().savefig("run.pdf")`` or ``"run.svg"`` keeps it.
        Raises ValueError before the first round that is evaluated.
        """
        charts = course(read_run(self.directory))
        if not charts:
            raise ValueError(f"{self.directory} has no evaluated round: there is nothing to draw")
        return shown(plot(charts))

    @cached_property  # files of a finished run stay as they are
    def _rows(self) -> list[Row]:
        return [Row.parse(row) for row in RunDir(self.directory).read_rounds()]

    def _facts(self) -> dict[str, str]:
        """The run in words, by name."""
        result = read_run(self.directory)
        head = {
            "workload": user_code.shown(str(result.settings["workload"])),
            "method": user_code.shown(result.method),
        }
        if not result.done:
            return {**head, "status": result.status, "rounds": str(len(result.rows))}
        words = {**head, **outcome(result.summary)}
        return {**words, "run directory": str(self.directory)}

    def __repr__(self) -> str:
        return "\n".join(f"{name:14} {words}" for name, words in self._facts().items())

    def _repr_html_(self) -> str:
        charts = course(read_run(self.directory))
        image = None
        if charts:
            data = base64.b64encode(png(charts)).decode()
            image = f"data:image/png;base64,{data}", PLOT, CURVES_PIXELS
        return notebook_cell(self._facts().items(), image)


def left_model(run: RunDir) -> FinalModel:
    """The final model that a run has written. Raises FileNotFoundError; DamagedError."""
    tensors, facts = read_model(run.path)
    return FinalModel(tensors=tensors, facts=facts)


def checkpoint_model(base: Base, run: RunDir) -> FinalModel:
    """The evaluated model of a run's last undamaged checkpoint.

    Raises ValueError without one, and if it has other parameters.
    """
    state = base.initial.server()
    state.load_state_dict(run.resume_point()[0]["server"])
    return final_model(base, state)


def without_adapters(final: FinalModel) -> FinalModel:
    """The same model with W_0 + s B A in place of LoRA's factors.

    Raises ValueError for a model without them, or whose layers are not linear in their weights.
    """
    lora = final.facts["lora"]
    if lora is None:
        raise ValueError(
            f"method {final.facts['method']!r} trains no factors of LoRA: leave --merge-lora out"
        )
    if not lora["merges"]:
        raise ValueError(
            "this model standardises its weights: W_0 + s B A in one layer is another function "
            "than the two that were trained; leave --merge-lora out"
        )
    paths, trained = lora["layers"], set(final.facts["trained"])
    tensors = merge(final.tensors, paths, lora["scale"])
    trained |= {f"{path}.weight" for path in paths}
    trained |= {f"{path}.bias" for path in paths if f"{path}.base.bias" in trained}
    changed = {
        "lora": None,
        "lora_merged": True,
        "trained": [name for name in tensors if name in trained],
    }
    return FinalModel(tensors=tensors, facts={**final.facts, **changed})


@short_traceback
def load_run(
    path: str | Path,
    *,
    workload: str | Workload | Callable[[], Workload] | None = None,
    method: str | Callable[..., Any] | None = None,
    trust_code: bool = False,
) -> Run:
    """The run in a directory, which may come from anybody: none of its code runs, but for
    ``Run.model``.

    workload, method: the run's own, as in ``fedlsg.simulate``. trust_code: run the code that the
        directory names, after file and digest are printed. Other code than the run's record is
        refused in every case.
    Raises ValueError for a folder that is not a run, or whose files changed since the run.
    """
    run = open_run(path, (*RESULTS, *MODEL), warn)
    read_run(run.path)
    return Run(run.path, code=Code(workload=workload, method=method, trust=trust_code))
