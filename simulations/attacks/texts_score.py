"""What is known of texts beforehand, and recovered ones compared with the truth and with the blind
guess.

Only the second part sees the truth.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg.attacks.metrics import best_matching, exact_match, token_recall
from fedlsg.attacks.observation import Guess
from fedlsg.attacks.tokens import TextPrior, Vocabulary
from fedlsg.simulations.attacks.findings import FORMS, Outcome, Score, common_figures, of_guess
from fedlsg.simulations.attacks.observations import Record
from fedlsg.simulations.models.encoder_source import find_encoder, load_tokenizer
from fedlsg.simulations.report.table import Column
from fedlsg.simulations.workloads.rows.hub import data_root

PUBLIC_TEXTS = 5000
UNSEEN = 0.1
"""Count of a token that no public text holds: it stays possible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextPublic:
    """What is known of a workload's texts beforehand.

    tokenizer: the model's own. ignored: padding, begin, end: they count on neither side. counts:
    copies of each token in each public text, which the blind guess and the prior are made of.
    """

    tokenizer: Any
    ignored: frozenset[int]
    special: tuple[int, ...]
    words: str
    embeddings: str
    pad: int
    begin: int | None
    end: int | None
    size: int
    types: int
    counts: tuple[Counter[int], ...]

    def prior(self, length: int) -> TextPrior:
        """For texts of ``length`` tokens, special ones included."""
        total = torch.full((self.size,), UNSEEN, dtype=torch.float64)
        for counted in self.counts:
            for token, copies in counted.items():
                total[token] += copies
        vocabulary = Vocabulary(
            embeddings=self.embeddings,
            words=self.words,
            size=self.size,
            length=length,
            special=self.special,
            pad=self.pad,
            types=self.types,
        )
        total[[*self.ignored]] = 0.0
        inner = length - (self.begin is not None) - (self.end is not None)
        ends = (
            ([] if self.begin is None else [self.begin]),
            ([] if self.end is None else [self.end]),
        )
        return TextPrior(
            vocabulary=vocabulary,
            log_frequency=(total / total.sum()).log().float(),
            blind=torch.tensor([*ends[0], *self.blind(inner), *ends[1]]),
        )

    def blind(self, count: int) -> list[int]:
        """The ``count`` tokens that hold most of a public text on average: no other guess blind to
        it holds more.

        A token is in it more than once if that pays: its second copy counts the texts that hold it
        twice.
        """
        held: Counter[tuple[int, int]] = Counter()
        for counted in self.counts:
            held.update(
                (token, copy) for token, copies in counted.items() for copy in range(copies)
            )
        most = [token for (token, _), _ in held.most_common(count)]
        return [*most, *most[:1] * (count - len(most))]


def text_public(record: Record) -> TextPublic:
    """From settings, model and public test split. Raises ValueError for a model without a table of
    word embeddings.
    """
    settings, workload = record.base.settings, record.base.workload
    folder = None if settings.data_dir is None else Path(settings.data_dir)
    tokenizer = load_tokenizer(
        find_encoder(str(settings.model), settings.pretrained), data_root(folder)
    )
    model = record.base.build_model()
    words, embeddings = embedding_paths(model)
    table = model.get_submodule(words)
    assert isinstance(table, nn.Embedding)
    rows = torch.arange(min(PUBLIC_TEXTS, len(workload.test)))
    public, _ = workload.test.batch(rows)
    pad, begin, end = (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
    ignored = frozenset(int(token) for token in (pad, begin, end) if token is not None)
    never = (number for word, number in tokenizer.get_vocab().items() if word.startswith("[unused"))
    kinds = public.get("token_type_ids")
    return TextPublic(
        tokenizer=tokenizer,
        ignored=ignored,
        special=tuple(
            sorted({*never, *map(int, tokenizer.all_special_ids)} - (ignored - {int(pad)}))
        ),
        words=words,
        embeddings=embeddings,
        pad=int(pad),
        begin=begin,
        end=end,
        size=table.num_embeddings,
        types=1 if kinds is None else int(kinds.max()) + 1,
        counts=tuple(
            Counter(t for t in text if t not in ignored) for text in public["input_ids"].tolist()
        ),
    )


def embedding_paths(model: nn.Module) -> tuple[str, str]:
    """(table of word embeddings according to transformers, module of embeddings that it is in).

    Raises ValueError for a model that has none.
    """
    ask = next(
        (m.get_input_embeddings for m in model.modules() if hasattr(m, "get_input_embeddings")),
        None,
    )
    table = ask() if callable(ask) else None
    words = next(
        (name for name, m in model.named_modules() if m is table and isinstance(m, nn.Embedding)),
        "",
    )
    if not words:
        raise ValueError("the model has no table of word embeddings: its tokens cannot be attacked")
    return words, words.rpartition(".")[0]


Blind = Callable[[int], list[int]]
"""The blind guess of so many tokens."""
LEAK = 0.05
"""Updates leak texts if an attack recovers this share of the tokens more than the blind guess."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredText(Score):
    """One attack on one update: its texts in the order of the true ones, which they are paired
    with.

    tokens: (B, T). recall, blind: of the tokens of the whole batch; exact: texts that are the truth
    token by token.
    """

    tokens: Int64[Tensor, "batch positions"]
    recall: float
    blind: float
    exact: int


def scored(
    name: str,
    guess: Guess,
    truth: Int64[Tensor, "batch positions"],
    blind: Blind,
    ignored: frozenset[int],
    seconds: float,
) -> ScoredText:
    """Pair texts with the true ones by the tokens that they miss, count.

    The blind guess may name as many tokens as the attack did, or as there are, whichever is more.
    """
    tokens = guess.inputs.long()
    named = [
        sum(token not in ignored for token in ids.flatten().tolist()) for ids in (tokens, truth)
    ]
    cost = torch.tensor(
        [[_missed(mine, true, ignored) for true in truth.tolist()] for mine in tokens.tolist()]
    )
    guesses, truths = best_matching(cost)
    paired = torch.full_like(truth, -1)
    paired[truths] = tokens[guesses]
    pairs = zip(paired.tolist(), truth.tolist(), strict=True)
    return ScoredText(
        **of_guess(name, guess, seconds),
        tokens=paired,
        recall=token_recall(paired.flatten().tolist(), truth.flatten().tolist(), ignored=ignored),
        blind=token_recall(blind(max(named)), truth.flatten().tolist(), ignored=ignored),
        exact=sum(exact_match(mine, true, ignored=ignored) for mine, true in pairs),
    )


def _missed(guess: Sequence[int], truth: Sequence[int], ignored: frozenset[int]) -> float:
    """Tokens of a text that a guess lacks, and a little for those at another position."""
    wanted = sum(token not in ignored for token in truth)
    held = token_recall(guess, truth, ignored=ignored) * wanted if wanted else 0.0
    return wanted - held + 1e-3 * sum(a != b for a, b in zip(guess, truth, strict=True))


@dataclass(frozen=True, kw_only=True)
class TextSummary(Outcome):
    """One attack over all updates of one batch size; figures are shares of the tokens."""

    columns = (
        Column("texts", lambda row: row.texts),
        Column("recall", lambda row: 100 * row.recall, "{:.0f} %".format),
        Column("blind", lambda row: 100 * row.blind, "{:.0f} %".format),
        Column("gain", lambda row: 100 * row.mean_gain, "+.0f"),
        Column(
            "95 % interval",
            lambda row: row.gain,
            lambda g: f"{100 * g.low:+.0f} to {100 * g.high:+.0f}",
        ),
        Column("exact", lambda row: f"{row.exact} of {row.texts}"),
    )
    note = (
        "blind: recall of a guess without the payload. gain: recall over it, in points. The 95 % "
        "interval is that of the mean gain over these updates; another training run or other "
        "starting points are not in it. " + FORMS
    )
    granted = MappingProxyType(
        {
            "prior": "tokenizer, and how often public test texts hold each token",
            "length": "tokens of the longest text of the batch; the rank of a payload without "
            "noise shows it as well",
        }
    )
    limits = (
        "Recall counts tokens with repeats and in any order, without padding, begin and end. It is "
        "shown next to a blind guess, because many texts hold the most frequent tokens."
    )
    unit, scale, things, least = "points of recall", 100.0, "texts", LEAK
    single, nothing = "; one update", "no tokens recovered beyond a blind guess"
    texts: int
    recall: float
    exact: int

    @property
    def result(self) -> str:
        return (
            f"recovers {100 * self.recall:.0f} % of the tokens, a blind guess "
            f"{100 * self.blind:.0f} %; {self.exact} of {self.texts} texts word by word"
        )

    @property
    def reach(self) -> str:
        if self.gain is None:
            return ""
        return (
            f"; 95 % interval of the gain {100 * self.gain.low:+.0f} to "
            f"{100 * self.gain.high:+.0f} points"
        )

    @classmethod
    def of(cls, results: Sequence[ScoredText], batch: int) -> "TextSummary":
        """Means over the updates of one attack's results."""
        gains = torch.tensor([r.recall - r.blind for r in results], dtype=torch.float64)
        recall, blind = (
            statistics.fmean(getattr(r, name) for r in results) for name in ("recall", "blind")
        )
        common = common_figures(results, batch, score=recall, blind=blind, gains=gains)
        if (gain := common["gain"]) is not None:  # no gain of a share is larger
            common["gain"] = replace(gain, low=max(-1.0, gain.low), high=min(1.0, gain.high))
        return cls(
            **common, texts=batch * len(results), recall=recall, exact=sum(r.exact for r in results)
        )
