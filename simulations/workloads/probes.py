"""From a workload and a word to the public inputs of a probe.

auto          the first of the workload's own: a user's ``probe=`` function, dead leaves for images, bags of words
leaves, pink  synthetic images               tokens   bags of words of the tokenizer's vocabulary
data:NAME     a built-in data set, or the path of public data in a form that the workload reads
FILE.py:NAME  a user's function(count, generator): inputs, or (inputs, targets)

Synthetic inputs and a user's function are given no data. Public data are compared with the workload's own, and refused
where they overlap: ``simulations.workloads.public_data``.
"""

from pathlib import Path

from fedlsg import user_code
from fedlsg.carriers.probe.source import Draw, ProbeSource
from fedlsg.choices import did_you_mean
from simulations.workloads import DEFAULT, LoadedWorkload, Options, Progress, silent
from simulations.workloads.own.probe import CheckedDraw
from simulations.workloads.public_data import public_data


def probe_source(
    workload: LoadedWorkload,
    spec: str = "auto",
    *,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    options: Options = DEFAULT,
    progress: Progress = silent,
) -> ProbeSource:
    """The source that ``spec`` names, with the workload's loss and classes; see the top of this file.

    ``data_dir``, ``cache_dir``, ``options``: as the workload was loaded with; they matter for ``data:`` alone.
    Guarantee: what it draws does not depend on a training row.
    Raises ValueError for an unknown word, a source that the workload has not, and the workload's own data.
    """
    name, draw = _find(workload, spec, data_dir, cache_dir, options, progress)
    return ProbeSource(name=name, draw=draw, loss=workload.loss, num_classes=workload.num_classes)


def _find(
    workload: LoadedWorkload, spec: str, data_dir: Path | None, cache_dir: Path | None, options: Options, say: Progress
) -> tuple[str, Draw]:
    known = workload.synthetic
    if spec.startswith(user_code.DATA):
        name = spec.removeprefix(user_code.DATA)
        rows = public_data(name, workload, data_dir=data_dir, cache_dir=cache_dir, options=options, progress=say)
        return user_code.shown(spec), rows
    if spec in known:
        return spec, known[spec]
    if spec == "auto" and known:
        return next(iter(known.items()))
    if user_code.is_reference(spec):
        name = user_code.shown(spec)
        return name, CheckedDraw(user_code.load(spec, "source"), name)
    there = f"it has {', '.join(known)}{did_you_mean(spec, known)}" if known else "none is known for its inputs"
    raise ValueError(
        f"workload {workload.name} has no probe source {spec!r}: {there}; give a function, fedlsg.Workload(..., "
        "probe=lambda count, generator: torch.randn(count, 30, generator=generator)) or source=mine.py:draw, or public "
        "data of the same form, source=data:PATH"
    )
