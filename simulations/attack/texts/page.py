"""What attacks found on a run of texts: table, facts, texts next to what was recovered, numbers."""

import math
from collections.abc import Sequence, Set
from dataclasses import asdict
from typing import Any

from simulations.attack.recorded.report import (
    OF_ATTACK,
    SECONDS,
    Findings,
    attacks_in_order,
    privacy_facts,
    style_of,
    summaries,
    update_numbers,
)
from simulations.attack.recorded.rows import FORMS, best_of, shown_name, sigma_of
from simulations.attack.texts.attack import AttackedTexts, tokens_of
from simulations.attack.texts.score import ScoredText, TextSummary, summarise, verdict
from simulations.report.page import Mark, TokenLine, TokenLines
from simulations.report.table import Column, make_table

COLUMNS = (
    *OF_ATTACK,
    Column("texts", lambda row: row.texts),
    Column("recall", lambda row: 100 * row.recall, "{:.0f} %".format),
    Column("blind", lambda row: 100 * row.blind, "{:.0f} %".format),
    Column("gain", lambda row: 100 * row.mean_gain, "+.0f"),
    Column("95 % interval", lambda row: row.gain, lambda gain: f"{100 * gain.low:+.0f} to {100 * gain.high:+.0f}"),
    Column("exact", lambda row: f"{row.exact} of {row.texts}"),
    SECONDS,
)
NOTE = (
    "blind: recall of a guess without the payload. gain: recall over it, in points. The 95 % interval is that of the "
    f"mean gain over these updates; another training run or other starting points are not in it. {FORMS}"
)
SHOWN = 12
"""Texts on the page, of all that were attacked."""
CAPTION = (
    "Green: the token is right, and where it belongs. Struck through: it is not in the batch. Dotted: it is in the "
    "batch, in another position or text. Recovered texts are paired with the originals by the tokens that they miss. "
    "The blind guess is for the whole batch."
)
LIMITS = (
    "Recall counts tokens with repeats and in any order, without padding, begin and end. It is shown next to a blind "
    "guess, because many texts hold the most frequent tokens."
)
GRANTED = {
    "prior": "tokenizer, and how often public test texts hold each token",
    "length": "tokens of the longest text of the batch; the rank of a payload without noise shows it as well",
}


def text_findings(one: AttackedTexts) -> Findings:
    """Table, texts and numbers of one run."""
    rows = summaries(one, summarise)
    return Findings(
        label=one.record.base.settings.method,
        verdict=verdict(rows),
        facts=facts(one),
        table=make_table(COLUMNS, rows, style=style_of, note=NOTE),
        shown=TokenLines(lines=tuple(lines(one, attacks_in_order(rows))), caption=CAPTION),
        numbers=numbers(one, rows),
        refused=one.refused,
        granted=GRANTED,
        limits=LIMITS,
        best=best_of(rows, one.record, one.targets[0].seen, "points of recall", 100.0),
    )


def facts(one: AttackedTexts) -> dict[str, str]:
    """Epsilon, sigma, membership, which layers were trained, and what was received, by name."""
    seen = one.targets[0].seen
    layers = one.record.base.settings.train_layers
    trained = "all layers trained" if layers is None else f"only the top {layers} layers trained, the others frozen"
    bits = bits_at_most(one)
    return {
        **privacy_facts(one.record, seen, one.membership),
        "layers": trained,
        "received": f"{len(seen.values):,} numbers of each update",
        **({} if bits is None else {"at most": bits}),
    }


def bits_at_most(one: AttackedTexts) -> str | None:
    """The most that noise lets through: a Gaussian channel of power B^2 C^2 / sigma^2 C^2 carries half of it in nats.

    The bound holds on average over all texts. There is none without noise, or for several local steps.
    """
    seen = one.targets[0].seen
    if not seen.mechanism.private or seen.local.steps > 1:
        return None
    sigma = sigma_of(seen)
    batch = max(len(target.truth.rows) for target in one.targets)
    bits = batch**2 / (2 * sigma**2 * math.log(2))
    return f"{bits:.3g} bits about a batch of {batch} in a payload with this noise, on average over texts"


def lines(one: AttackedTexts, order: Sequence[str]) -> list[TokenLine]:
    """Original, blind guess and every attack of the first texts, attacks in this order."""
    words = one.public.tokenizer.convert_ids_to_tokens
    made: list[TokenLine] = []
    for target, blind, results in zip(one.targets, one.blind, one.results, strict=True):
        held = set(tokens_of(target).flatten().tolist())
        for row, text in enumerate(tokens_of(target).tolist()):
            if sum(line.first for line in made) == SHOWN:
                return made
            known = [token for token in text if token not in one.public.ignored]
            made.append(TokenLine(name="original", tokens=tuple((words(token), "") for token in known), first=True))
            if row == 0:
                marks: list[Mark] = ["" if token in held else "wrong" for token in blind]
                made.append(TokenLine(name="blind guess", tokens=tuple(zip(map(words, blind), marks, strict=True))))
            made += [
                TokenLine(name=shown_name(r.attack), tokens=tuple(marked(r, row, text, held, one)))
                for r in sorted(results, key=lambda r: order.index(r.attack))
            ]
    return made


def marked(
    result: ScoredText, row: int, text: Sequence[int], held: Set[int], one: AttackedTexts
) -> list[tuple[str, Mark]]:
    """Recovered tokens of one text, each with its mark; ``held``: all tokens of the batch."""
    words, ignored = one.public.tokenizer.convert_ids_to_tokens, one.public.ignored
    found: list[tuple[str, Mark]] = []
    for token, true in zip(result.tokens[row].tolist(), text, strict=True):
        if token < 0 or token in ignored:
            continue
        found.append((words(token), "found" if token == true else "moved" if token in held else "wrong"))
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
                **update_numbers(target),
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
