"""report.html: complete, self-contained, escaped; of one run and of many; and what is no run is
refused.
"""

import math
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from fedlsg.simulations.compare.results.collect import read_runs
from fedlsg.simulations.compare.results.comparison_files import Comparison, page
from fedlsg.simulations.compare.results.plots import figures
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.report.page_of_run.run_page import command, gap_words, run_page
from fedlsg.simulations.report.page_of_run.tiles import check_against, privacy_badge, quality_tiles
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.compare_cases import result, row
from tests.simulations.support.own_scripts import without_scripts

HOSTILE = '<script>alert("1")</script>&\'"<img src=http://x onerror=y>'
RESULTS = [
    result(0.80),
    result(0.84, seed=1),
    result(0.7, method="linear-probe"),
    result(0.1, method="rs"),
    result(0.9, epsilon=8.0),
    result(0.97, method="sgd", epsilon=None),
    result(None, method="rgp"),
]


class Page(HTMLParser):
    """Tags, what they load, and the text between them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = ("src", "href", "xlink:href", "srcset", "data", "action")
        self.loads += [
            v or "" for k, v in attrs if k in names and tag != "a" and not (v or "").startswith("#")
        ]
        self.links += [v or "" for k, v in attrs if k == "href" and tag == "a"]
        self.loads += re.findall(r"url\(([^)]*)\)", dict(attrs).get("style") or "")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            return
        self.words += " " + " ".join(data.split())
        if self.tags and self.tags[-1] == "style":
            self.loads += re.findall(r"url\(([^)]*)\)|@import", data)


def outside(source: str) -> list[str]:
    """What a browser would fetch to show the page."""
    return [target for target in Page(source).loads if not target.startswith("data:image/")]


@cache
def usual_page() -> str:
    """The page of RESULTS."""
    return made()


def made(results: list[object] = RESULTS, **more: str) -> str:
    comparison = Comparison(title="digits", results=results, **more)
    return page(comparison, figures(comparison.table))


def test_the_page_says_what_a_reader_must_know():
    words = Page(made(command="fedlsg compare digits", grid="seeds = [0]")).words
    for part in (
        "6 of 7 runs finished",
        "seeds 0, 1",
        "82.0 ± 2.8",
        'lines claims no privacy: "sgd"',
        "one example of one client",
        "add or remove one example",
        "No epsilon here covers that",
        "rgp-seed0",
        "failed: rank too big",
        "Not better than guessing by three standard errors: rs at epsilon 3",
        "linear-probe",
        "Some CPU, 2 cores",
        "torch 2.13.0",
        "fedlsg compare digits",
        "seeds = [0]",
        "guessing reaches 10.0 %",
    ):
        assert part in words, part
    assert "linear probe is missing" not in words
    assert "The private linear probe is missing" in Page(made([result(0.8)])).words


def test_the_pages_ask_nobody_for_anything(small):
    for source in (usual_page(), (small.path / "report.html").read_text()):
        assert outside(source) == []
        assert not {"link", "iframe", "object", "embed"} & set(Page(source).tags)
        own = without_scripts(source)
        assert "<script" not in re.sub(r'<script type="application/json">[^<]*</script>', "", own)
        assert source.count('<svg role="img"') >= 3
        assert all(link.startswith(("#", "data:")) for link in Page(source).links)


def test_hostile_text_stays_text(small):
    clean = set(Page(made(command="c", grid="g")).tags)
    bad = [
        result(0.8, label=HOSTILE, settings={"model": HOSTILE}),
        result(None, seed=1, reason=HOSTILE),
    ]
    source = made([*RESULTS, *bad], command=HOSTILE, grid=HOSTILE)
    assert set(Page(source).tags) == clean
    assert outside(source) == []
    assert HOSTILE.replace("  ", " ") in Page(source).words
    one = run_page(result(0.8, settings={"model": HOSTILE}))
    assert HOSTILE in Page(one).words
    for text in (source, one):
        assert "<script" not in re.sub(
            r'<script type="application/json">[^<]*</script>', "", without_scripts(text)
        )


def test_the_command_of_a_run_makes_the_same_settings(small):
    """It is taken, though a run refuses settings that have no effect."""
    from fedlsg.simulations.cli.command_line import merge
    from fedlsg.simulations.settings.settings import from_mapping

    result = read_runs([small.path])[0]
    said = command(result).split()
    assert said[:3] == ["fedlsg", "run", "digits"]
    assert "-c" in said
    given = merge({"workload": said[2]}, said[4::2])
    again = prepare(from_mapping(given), given=list(given)).settings
    before = RunDir(small.path).read_config()
    apart = ("run_dir", "auto", "parameters")
    assert {k: v for k, v in vars(again).items() if k not in apart} == {
        k: v for k, v in vars(before).items() if k not in apart
    }
    assert before.parameters.items() <= again.parameters.items()
    with pytest.raises(ValueError, match="needs partition="):  # the negative control
        prepare(from_mapping(given), given=[*given, "alpha", "shards_per_client"])


def test_the_accuracy_without_privacy_is_named_where_a_run_has_it():
    private, dense = result(0.8), result(0.97, method="sgd", epsilon=None)
    first, second, *_ = quality_tiles(private, dense)
    assert gap_words(private, dense) == "Without privacy the accuracy is 97.00 %, 17.0 points more."
    assert "no loss is seen" in gap_words(private, result(0.81, method="sgd", epsilon=None))
    assert gap_words(private, None) == ""
    assert "without privacy" not in first.note
    assert (second.name, second.value) == ("without privacy", "97.00 %")
    assert dense.name in second.note
    check_against(private, dense)
    for other, why in (
        (private, "is private: give a run without privacy"),
        (
            replace(dense, settings={**dense.settings, "workload": "sst2"}),
            "has workload=sst2, and the run workload=",
        ),
        (result(None, method="sgd", epsilon=None), "has no accuracy"),
    ):
        with pytest.raises(ValueError, match=why):
            check_against(private, other)


STORY = ["Is it private?", "Does it work?", "What did it cost?", "What would help?"]


def titles(source: str) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", source)


def drawn(source: str) -> list[str]:
    """Titles of the charts."""
    return re.findall(r'<p class="title">([^<]*)</p>', source)


def test_the_page_of_a_run_asks_four_questions_in_their_order():
    private = run_page(result(0.8))
    assert titles(private)[:4] == STORY
    assert drawn(private) == [
        "Accuracy round by round",
        "Loss round by round",
        "Accuracy for the privacy spent",
        "Accuracy for the bytes moved",
    ]
    public = run_page(result(0.97, method="sgd", epsilon=None))
    assert "Accuracy for the privacy spent" not in drawn(
        run_page(replace(result(0.97), rows=tuple(map(endless, result(0.97).rows))))
    )
    assert titles(public)[:4] == STORY


def endless(row: Row) -> Row:
    return replace(row, epsilon_max=math.inf)


def test_nothing_is_said_twice():
    """Each number of a card is in one card, and no list of facts repeats it."""
    source = run_page(result(0.8123))
    words = Page(source).words
    names = re.findall(r'<(?:span class="name"|dt)>([^<]*)<', source.partition("<details>")[0])
    assert len(set(names)) == len(names) > 5
    assert words.count("81.23 %") == 1
    assert words.count("4.0x smaller than dense updates") == 1


def regression(loss: float, mean: float) -> Result:
    """A run without classes, with a metric of its own."""
    run = result(0.5)
    rows = tuple(replace(one, accuracy=None, metrics={"mae": 0.4}) for one in run.rows)
    summary = run.summary | {"accuracy": None, "chance": None, "loss": loss}
    summary |= {
        "metrics": {"mae": 0.4},
        "predict_the_mean": {"loss": mean, "metrics": {"mae": 1.5}},
    }
    return replace(run, rows=rows, summary=summary)


def test_a_regression_is_next_to_predicting_the_mean():
    good = run_page(regression(loss=0.5, mean=2.0))
    assert drawn(good)[:2] == ["Loss round by round", "mae round by round"]
    assert "The loss is 75 % below that of predicting the mean." in good
    assert "smaller is better; predicting the mean: 2" in good
    assert "smaller is better; predicting the mean: 1.5" in good
    assert "Not better than predicting the mean" not in good
    assert "Not better than predicting the mean" in run_page(regression(loss=2.1, mean=2.0))


def test_a_run_that_goes_on_says_how_far_it_is():
    run = result(0.8, settings={"rounds": 10, "epsilon": 4.0})
    rows = tuple(replace(one, seconds=3.0) for one in run.rows)
    going = replace(run, summary={}, status="running", rows=rows)
    words = Page(run_page(going)).words
    assert "2 of 10, about 24.0 s left" in words  # eight rounds of three seconds
    assert "epsilon 1.000 of 4, at delta 1e-05" in words
    stopped = Page(run_page(replace(going, status="interrupted"))).words
    assert "2 of 10" in stopped
    assert "s left" not in stopped
    assert "of 10, about" not in Page(run_page(run)).words, "a finished run has no bar"


def test_without_privacy_there_is_no_budget_line():
    free = result(0.8, method="sgd", epsilon=None)
    going = replace(free, summary={}, status="running", rows=tuple(map(endless, free.rows)))
    assert "privacy budget" not in Page(run_page(going)).words


def test_a_client_that_sent_nothing_is_no_rejected_payload():
    gone = row(1, 0.8, answered="0", rejected="1", reasons="1: no node of the federation is it")
    page = run_page(replace(result(0.8), rows=(gone,)))
    assert "Clients without an update" in page
    assert "no node of the federation is it" in page
    assert "Rejected payloads" not in page
    assert "Clients without an update" not in run_page(result(0.8))  # a control


def test_a_run_at_100_percent_is_not_told_to_send_fewer_values():
    def noisy(accuracy: float) -> Result:
        made = result(accuracy, method="dpsgd")
        return replace(made, summary={**made.summary, "rho": 3.0})

    assert "send fewer values" in run_page(noisy(0.8))
    words = Page(run_page(noisy(1.0))).words
    assert "a smaller epsilon may do" in words
    assert "send fewer values" not in words


def test_the_badge_says_of_held_out_rows_what_the_terminal_says():
    assert privacy_badge(result(0.8)) == ("private", "good")
    held_out = result(0.8, settings={"holdout": 0.2})
    assert privacy_badge(held_out) == ("private, but the accuracies are NOT PRIVATE", "limited")


def test_how_it_was_made_is_one_table_with_the_selected_clients():
    made = replace(
        result(0.8, settings={"clients_per_round": 3}),
        start={"rows": {"files": ["a.csv"]}},
    )
    page = run_page(made)
    section = page[page.rindex("How it was made") :]
    assert "5 clients, 3 selected in each round" in section
    table = section[section.index("<dl>") : section.index("</dl>")]
    assert "a.csv" in table
    assert "federation" in table
    everybody = result(0.8, settings={"clients_per_round": 5})
    assert "selected in each round" not in run_page(everybody)
