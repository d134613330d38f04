"""One Ray for all cells of a comparison, and the share of its places that each cell gets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from simulations.compare.cells.grid import Cell
from simulations.compare.cells.worker import environment
from simulations.engines.cluster import Cluster, fitting, processors, starting
from simulations.settings.settings import RUN

Ray = Cluster | None
"""None where no cell uses Ray."""


@contextmanager
def one_ray(cells: Sequence[Cell]) -> Iterator[Ray]:
    """Ray for these cells, about to start, or the cluster that RAY_ADDRESS names; without workers, which take places.

    On exit and on every exception nothing of it is left. Raises RuntimeError if no cluster listens there.
    """
    if not any(map(_on_ray, cells)):
        yield None
        return
    with starting(ahead=0) as ray:
        yield ray


@contextmanager
def share_out(cells: Sequence[Cell], jobs: int | None, ray: Ray) -> Iterator[tuple[Sequence[Cell], int]]:
    """The cells, each with its number of workers, and how many of them run at a time: at most ``jobs``.

    A place is what one worker needs. All cells that run at a time have places. Without ``jobs`` they are as many as
    have places, at most the processors of this machine, where the drivers run; without Ray one. Processes that are
    started inside join Ray.
    """
    if ray is None:
        yield cells, jobs or 1
        return
    address = ray.address()
    places = {cell.name: _places(cell) for cell in cells if _on_ray(cell)}
    room = min(places[cell.name] // (_said(cell, "workers") or 1) for cell in cells if cell.name in places)
    jobs = max(1, min(jobs or processors(), room, len(cells)))
    shared = [
        replace(cell, given={"workers": max(1, places[cell.name] // jobs), **cell.given})
        if cell.name in places
        else cell
        for cell in cells
    ]
    with environment("RAY_ADDRESS", address):
        yield shared, jobs


def _on_ray(cell: Cell) -> bool:
    return bool(_said(cell, "engine") == "ray")


def _places(cell: Cell) -> int:
    """How many workers of a cell fit into Ray at once; at least 1, because the cell itself reports that none fits."""
    cpus, gpus = _said(cell, "client_cpus"), _said(cell, "client_gpus")
    with_gpu = 0 if _said(cell, "device") == "cpu" else fitting(cpus, gpus)
    return with_gpu or fitting(cpus, 0) or 1


def _said(cell: Cell, setting: str) -> Any:
    return cell.given.get(setting, RUN[setting].default)
