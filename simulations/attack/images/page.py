"""What attacks found on a run of images: table, facts, picture, numbers."""

from dataclasses import asdict
from typing import Any

from simulations.attack.images.attack import Attacked
from simulations.attack.images.grid import grid
from simulations.attack.images.score import Summary, summarise, verdict
from simulations.attack.recorded.report import Findings, privacy_facts
from simulations.report.figure import picture, png
from simulations.report.page import Row, Table

COLUMNS = ("attack", "batch", "images", "PSNR, dB", "SSIM", "blind, dB", "gain, dB", "95 % interval", "seconds")
SECONDS = (COLUMNS.index("seconds"),)
"""What a narrow terminal leaves out."""
CAPTION = (
    "Originals, blind guesses and recovered images. The number below an image is its PSNR. Pink pixels are unknown to "
    "the attack. Recovered images and blind guesses are paired with the originals by least squared error."
)
LIMITS = "Each PSNR is shown next to that of a blind guess, because a grey image already has 10 to 12 dB."
GRANTED = {"prior": "the public range of pixels, and the mean and covariance of public test images by class"}


def image_findings(one: Attacked) -> Findings:
    """Table, picture and numbers of one run."""
    rows, figure = summaries(one), grid(one)
    return Findings(
        label=one.label,
        verdict=verdict(rows),
        facts=facts(one),
        table=Table(columns=COLUMNS, rows=tuple(Row(cells=cells(row)) for row in rows), optional=SECONDS),
        shown=picture(figure, CAPTION, png(figure)),
        numbers=numbers(one),
        refused=one.refused,
        granted=GRANTED,
        limits=LIMITS,
    )


def summaries(one: Attacked) -> list[Summary]:
    """One row for each attack and batch size, the largest gain first."""
    groups: dict[tuple[str, int], list[Any]] = {}
    for target, results in zip(one.targets, one.results, strict=True):
        for result in results:
            groups.setdefault((result.attack, len(target.truth.rows)), []).append(result)
    rows = [summarise(results, batch) for (_, batch), results in groups.items()]
    return sorted(rows, key=lambda row: -row.mean_gain)


def facts(one: Attacked) -> str:
    """Epsilon, sigma, membership and the count of numbers received, in one sentence."""
    what = (
        "at least as many as an exact solution needs without noise" if one.count.enough else "too few for an exact one"
    )
    return "; ".join(
        [
            *privacy_facts(one.record, one.targets[0].seen, one.membership),
            *([] if one.leak is None else [one.leak.words]),
            f"{one.count.received:,} numbers received, {one.count.equations:,} of them independent, for "
            f"{one.count.unknowns:,} unknowns in a batch of {one.count.examples}: {what}.",
        ]
    )


def cells(row: Summary) -> tuple[str, ...]:
    """The cells of one row."""
    reach = "--" if row.gain is None else f"{row.gain.low:+z.1f} to {row.gain.high:+z.1f}"
    return (
        row.attack, str(row.batch), str(row.images), f"{row.psnr:.1f}", f"{row.ssim:.2f}", f"{row.blind:.1f}",
        f"{row.mean_gain:+z.1f}", reach, f"{row.seconds:.1f}",
    )  # fmt: skip


def numbers(one: Attacked) -> dict[str, Any]:
    """Everything of attack.json about one run."""
    return {
        "run": one.record.run.path.name,
        "membership_tpr_at_1_percent_fpr": one.membership,
        "classifier": None if one.leak is None else asdict(one.leak),
        "values_received": one.count.received,
        "unknowns": one.count.unknowns,
        "summary": [{**asdict(row), "mean_gain": row.mean_gain} for row in summaries(one)],
        "updates": [
            {
                "round": target.seen.round,
                "clients": list(target.seen.clients),
                "rows": target.truth.rows.tolist(),
                "labels": target.truth.labels.tolist(),
                "attacks": [
                    {key: value for key, value in vars(result).items() if key != "images"} for result in results
                ],
            }
            for target, results in zip(one.targets, one.results, strict=True)
        ],
    }
