"""What a partition looks like before anything is trained on it: sizes, class balance, rates, and what delta allows.

For simulations only: the counts are read off every client's examples. In a federation each client knows only its
own, and they are as private as the examples are.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from simulations.plan.plan import Base, prepare
from simulations.settings.resolve import known
from simulations.settings.settings import from_mapping

ALL_SHOWN = 20
"""Clients up to which the table has a row for each; of more it has the ends and the quantiles."""
ENDS = 5
QUANTILES = {"smallest": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "largest": 1.0}


@dataclass(frozen=True, kw_only=True, eq=False)
class Balance:
    """Examples of every client by class, and its Poisson rate.

    counts: (clients, classes) int64; every client has an example.
    rates: (clients,) float64, q of each client.
    expected_batch: q times the mean size, which the server divides by.
    delta: None where the method claims no epsilon.
    """

    title: str
    counts: np.ndarray
    rates: np.ndarray
    expected_batch: float
    delta: float | None

    @property
    def sizes(self) -> np.ndarray:
        """N_k of every client."""
        return np.asarray(self.counts.sum(1))

    @property
    def batches(self) -> np.ndarray:
        """Expected examples of every client in a step, q N_k."""
        return np.asarray(self.rates * self.sizes)

    @property
    def shares(self) -> np.ndarray:
        """(clients, classes): the class mix of every client; rows add up to 1."""
        return np.asarray(self.counts / self.sizes[:, None])

    @property
    def distances(self) -> np.ndarray:
        """Total variation distance of every client's class mix from that of all examples: 0 equal, near 1 disjoint."""
        overall = self.counts.sum(0) / self.counts.sum()
        return np.asarray(0.5 * np.abs(self.shares - overall).sum(1))

    @property
    def delta_holds(self) -> np.ndarray:
        """Whether delta < 1/N_k, client by client; true where no delta is needed."""
        return np.ones(len(self.sizes), bool) if self.delta is None else self.delta < 1 / self.sizes


def measure(base: Base) -> Balance:
    """The balance of a prepared run."""
    s, labels = base.settings, base.workload.train.labels
    counts = torch.stack([torch.bincount(labels[part], minlength=base.workload.num_classes) for part in base.parts])
    sizes = np.array(base.sizes)
    rates = np.full(len(sizes), base.local.sample_rate)
    if s.batch_size is not None:
        rates = np.minimum(s.batch_size / sizes, 1.0)
    of = {"dirichlet": f" (alpha {s.alpha:g})", "shards": f" ({s.shards_per_client} a client)"}
    return Balance(
        title=f"{s.workload}: {sizes.sum():,} examples over {len(sizes)} clients, {s.partition}"
        f"{of.get(known(s.partition), '')}, seed {s.seed}",
        counts=counts.numpy(),
        rates=rates,
        expected_batch=base.local.expected_batch,
        delta=s.delta if base.method.mechanism.private else None,
    )


def partition_command(given: dict[str, Any], out: str | None, console: Console) -> None:
    """``fedlsg partition``: the table and its conclusions; with ``out`` also partition.csv and partition.png in it."""
    settings = from_mapping(given)
    with console.status("loading data") as status:
        balance = measure(prepare(settings, progress=status.update))
    wide = table(balance, counted=True)
    fits = Measurement.get(console, console.options.update(width=1000), wide).maximum <= console.width
    console.print(wide if fits else table(balance, counted=False))
    for line, style in conclusions(balance):
        console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)
    if out is None:
        console.print("add --out DIR for partition.csv and partition.png", style="dim", highlight=False)
        return
    directory = Path(out).expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_csv(balance, directory / "partition.csv")
        plot(balance, directory / "partition.png")
    except OSError as error:
        raise ValueError(f"cannot write to {directory}: {error.strerror or error}; choose another --out") from None
    console.print(f"[bold]written[/bold]  {escape(str(directory))}/partition.csv, partition.png", highlight=False)


def table(balance: Balance, *, counted: bool) -> Table:
    """A row for every client or, of many, the smallest, the largest and the quantiles of each column.

    counted: with the examples of every class, which takes room.
    """
    few = len(balance.sizes) <= ALL_SHOWN
    view = Table(title=balance.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("client", "examples", "q", "batch", "classes", "top class", "distance", "delta ok"):
        view.add_column(name, justify="right", no_wrap=True)
    if counted:
        view.add_column("examples by class", no_wrap=True)
    by_size = np.argsort(balance.sizes, kind="stable")
    for client in range(len(by_size)) if few else by_size[:ENDS]:
        view.add_row(*_row(balance, int(client), counted))
    if not few:
        view.add_section()
        for name, level in QUANTILES.items():
            view.add_row(name, *_quantile(balance, level), style="bold" if name == "median" else None)
        view.add_section()
        for client in by_size[-ENDS:]:
            view.add_row(*_row(balance, int(client), counted))
    return view


def _row(balance: Balance, client: int, counted: bool) -> list[str]:
    counts, shares = balance.counts[client], balance.shares[client]
    cells = [
        str(client),
        f"{balance.sizes[client]:,}",
        f"{balance.rates[client]:.4g}",
        f"{balance.batches[client]:.1f}",
        str(np.count_nonzero(counts)),
        f"{shares.argmax()}: {100 * shares.max():.0f} %",
        f"{balance.distances[client]:.2f}",
        "--" if balance.delta is None else "yes" if balance.delta_holds[client] else "[bold red]NO[/bold red]",
    ]
    width = len(str(balance.counts.max()))
    return cells + ([" ".join(f"{count:>{width}}" for count in counts)] if counted else [])


def _quantile(balance: Balance, level: float) -> list[str]:
    """Cells of one level; every column by itself, so that such a row is no client."""

    def at(values: np.ndarray) -> float:
        return float(np.quantile(values, level))

    return [
        f"{at(balance.sizes):,.0f}",
        f"{at(balance.rates):.4g}",
        f"{at(balance.batches):.1f}",
        f"{at(np.count_nonzero(balance.counts, axis=1)):.0f}",
        f"{100 * at(balance.shares.max(1)):.0f} %",
        f"{at(balance.distances):.2f}",
    ]


def conclusions(balance: Balance) -> list[tuple[str, str | None]]:
    """Lines with their style: the rate, the extremes, whether delta holds, what a step may lack."""
    sizes, rates, apart = balance.sizes, balance.rates, balance.distances
    smallest, largest = int(sizes.argmin()), int(sizes.argmax())
    rate = f"{rates[0]:.4g}" if np.ptp(rates) == 0 else f"{rates.min():.4g} to {rates.max():.4g}"
    lines: list[tuple[str, str | None]] = [
        (f"q = {rate}; expected batch {balance.expected_batch:.1f} a client, which every sum is divided by", None),
        (f"smallest client {smallest}: {sizes[smallest]:,} examples; largest {largest}: {sizes[largest]:,}", None),
        (f"distance to the class mix of all (total variation): mean {apart.mean():.2f}, most {apart.max():.2f}", None),
        _about_delta(balance),
    ]
    idle = int((balance.batches < 1).sum())
    if idle:
        lines.append((f"{idle} clients expect less than one example a step: raise q or lower clients", "yellow"))
    return lines


def _about_delta(balance: Balance) -> tuple[str, str | None]:
    if balance.delta is None:
        return "the method claims no epsilon: delta plays no part", None
    bound = 1 / balance.sizes.max()
    failing = int((~balance.delta_holds).sum())
    if not failing:
        return f"delta = {balance.delta:g} < 1/N_k for every client; the least 1/N_k is {bound:.3g}", None
    return (
        f"delta = {balance.delta:g} is not below 1/N_k for {failing} of {len(balance.sizes)} clients, and a run "
        f"refuses that: take delta < {bound:.3g}",
        "bold red",
    )


def write_csv(balance: Balance, path: Path) -> None:
    """One line a client: examples, rate, expected batch, distance, delta, and the examples of each class."""
    classes = balance.counts.shape[1]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        names = ["client", "examples", "sample_rate", "expected_batch", "class_distance", "delta_below_1_over_n"]
        writer.writerow([*names, *(f"class_{label}" for label in range(classes))])
        for client, counts in enumerate(balance.counts):
            writer.writerow(
                [
                    client,
                    balance.sizes[client],
                    f"{balance.rates[client]:.6g}",
                    f"{balance.batches[client]:.6g}",
                    f"{balance.distances[client]:.6g}",
                    "" if balance.delta is None else str(bool(balance.delta_holds[client])).lower(),
                    *counts,
                ]
            )


def plot(balance: Balance, path: Path) -> None:
    """Sizes as bars over a map of every client's class mix, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    clients, classes = balance.counts.shape
    figure = Figure(figsize=(min(14, max(7, 2.5 + 0.45 * clients)), 7), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    upper.bar(range(clients), balance.sizes, width=0.8, color="#4477aa")
    upper.axhline(balance.sizes.mean(), color="#222222", linewidth=1, linestyle="--", label="mean")
    upper.set_ylabel("examples $N_k$")
    upper.set_title(balance.title, fontsize="medium")
    upper.legend(frameon=False)
    shares = 100 * balance.shares.T
    image = lower.imshow(shares, aspect="auto", origin="lower", cmap="viridis", vmin=0, interpolation="nearest")
    if clients <= 12 and classes <= 12:
        for (label, client), share in np.ndenumerate(shares):
            colour = "white" if share < 0.6 * shares.max() else "black"
            lower.text(client, label, balance.counts[client, label], ha="center", va="center", color=colour, fontsize=8)
    lower.set_xlabel("client")
    lower.set_ylabel("class")
    for axis in (lower.xaxis, lower.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    figure.colorbar(image, ax=lower, label="share of the client's examples, %", pad=0.01)
    figure.savefig(path, dpi=120)
