"""What a text run's section of the report says: the texts beside what was recovered of them."""

import math
from collections.abc import Sequence, Set
from dataclasses import asdict
from typing import Any

from simulations.attack.recorded.report import Section, TextLine, privacy_facts
from simulations.attack.texts.attack import AttackedTexts, tokens_of
from simulations.attack.texts.score import ScoredText, TextSummary, summarise, verdict

COLUMNS = ("attack", "batch", "texts", "recall", "blind", "gain", "95 % interval", "exact", "seconds")
SHOWN = 12
"""Texts that are printed, of all that were attacked."""
CAPTION = (
    "Struck through: no token of the batch. Dotted: one of it, from another position or text. Texts of a batch are "
    "paired with the originals by the tokens that they miss; the blind guess is of the whole batch."
)
LIMITS = (
    "Recall counts tokens with repeats and in any order, without padding, begin and end; a blind guess is printed "
    "beside it because the most frequent tokens are in many texts."
)
GRANTED = {
    "prior": "tokenizer, and how often public test texts hold each token",
    "length": "tokens of the batch's longest text; the rank of a noise-free payload shows it as well",
}


def text_section(one: AttackedTexts) -> Section:
    """Table, texts and numbers of one run."""
    rows = summaries(one)
    return Section(
        label=one.label,
        verdict=verdict(rows),
        facts=facts(one),
        columns=COLUMNS,
        rows=tuple(cells(row) for row in rows),
        numbers=numbers(one, rows),
        refused=one.refused,
        granted=GRANTED,
        limits=LIMITS,
        caption=CAPTION,
        texts=tuple(lines(one)),
    )


def summaries(one: AttackedTexts) -> list[TextSummary]:
    """A line for each attack and batch size, the largest gain first."""
    groups: dict[tuple[str, int], list[ScoredText]] = {}
    for results in one.results:
        for result in results:
            groups.setdefault((result.attack, len(result.tokens)), []).append(result)
    return sorted((summarise(of, batch) for (_, batch), of in groups.items()), key=lambda row: -row.mean_gain)


def facts(one: AttackedTexts) -> str:
    """Epsilon, sigma, membership, and which layers were trained, in a sentence."""
    seen = one.targets[0].seen
    layers = one.record.base.settings.train_layers
    trained = "all layers trained" if layers is None else f"only the top {layers} layers trained, those below frozen"
    return "; ".join(
        [
            *privacy_facts(one.record, seen, one.membership),
            trained,
            *bits_at_most(one),
            f"{len(seen.values):,} numbers received of each update.",
        ]
    )


def bits_at_most(one: AttackedTexts) -> list[str]:
    """What noise leaves room for: a Gaussian channel of power B^2 C^2 / sigma^2 C^2 carries half of it in nats.

    Over all inputs of the channel, so over all texts. Nothing without noise, and for several local steps.
    """
    seen = one.targets[0].seen
    if not seen.mechanism.private or seen.local.steps > 1:
        return []
    sigma = seen.noise_std / seen.mechanism.sensitivity(len(seen.frame.blocks))
    batch = max(len(target.truth.rows) for target in one.targets)
    bits = batch**2 / (2 * sigma**2 * math.log(2))
    return [f"the noise leaves room for {bits:.3g} bits about a batch of {batch} in a payload, on average"]


def cells(row: TextSummary) -> tuple[str, ...]:
    """A line of the table."""
    reach = "--" if row.gain is None else f"{100 * row.gain.low:+.0f} to {100 * row.gain.high:+.0f}"
    return (
        row.attack, str(row.batch), str(row.texts), f"{100 * row.recall:.0f} %", f"{100 * row.blind:.0f} %",
        f"{100 * row.mean_gain:+.0f}", reach, f"{row.exact} of {row.texts}", f"{row.seconds:.1f}",
    )  # fmt: skip


def lines(one: AttackedTexts) -> list[TextLine]:
    """Original, blind guess and every attack of the first texts."""
    words = one.public.tokenizer.convert_ids_to_tokens
    made: list[TextLine] = []
    for target, blind, results in zip(one.targets, one.blind, one.results, strict=True):
        held = set(tokens_of(target).flatten().tolist())
        for row, text in enumerate(tokens_of(target).tolist()):
            if sum(line.first for line in made) == SHOWN:
                return made
            known = [token for token in text if token not in one.public.ignored]
            made.append(TextLine(name="original", tokens=tuple((words(token), "") for token in known), first=True))
            if row == 0:
                guessed = tuple((words(token), "" if token in held else "wrong") for token in blind)
                made.append(TextLine(name="blind", tokens=guessed))
            made += [TextLine(name=r.attack, tokens=tuple(marked(r, row, text, held, one))) for r in results]
    return made


def marked(
    result: ScoredText, row: int, text: Sequence[int], held: Set[int], one: AttackedTexts
) -> list[tuple[str, str]]:
    """Recovered tokens of one text, each with its mark; ``held``: all tokens of the batch."""
    words, ignored = one.public.tokenizer.convert_ids_to_tokens, one.public.ignored
    found = []
    for token, true in zip(result.tokens[row].tolist(), text, strict=True):
        if token < 0 or token in ignored:
            continue
        found.append((words(token), "" if token == true else "moved" if token in held else "wrong"))
    return found


def numbers(one: AttackedTexts, rows: Sequence[TextSummary]) -> dict[str, Any]:
    """Everything of attack.json about one run."""
    words = one.public.tokenizer.convert_ids_to_tokens
    return {
        "run": one.record.run.path.name,
        "membership_tpr_at_1_percent_fpr": one.membership,
        "summary": [{**asdict(row), "mean_gain": row.mean_gain} for row in rows],
        "updates": [
            {
                "round": target.seen.round,
                "clients": list(target.seen.clients),
                "rows": target.truth.rows.tolist(),
                "labels": target.truth.labels.tolist(),
                "tokens": [words(text) for text in tokens_of(target).tolist()],
                "blind": words(list(blind)),
                "attacks": [
                    vars(r) | {"tokens": [[words(t) if t >= 0 else None for t in row] for row in r.tokens.tolist()]}
                    for r in results
                ],
            }
            for target, blind, results in zip(one.targets, one.blind, one.results, strict=True)
        ],
    }
