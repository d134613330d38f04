"""``fedlsg partition``: numbers by hand, the table of few and of many clients, the files, and what it refuses."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from simulations.plan.balance import Balance, measure
from simulations.plan.plan import prepare
from simulations.report.figure import plot, png
from simulations.report.partition import BARS, charts, conclusions, csv_of, table
from simulations.report.terminal import terminal_table
from simulations.settings.settings import from_mapping

counts = st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3).filter(any), min_size=1, max_size=40)


def balance_of(rows: list[list[int]], *, rate: float = 0.5, delta: float | None = 1e-5) -> Balance:
    table_of = np.array(rows, dtype=np.int64)
    rates = np.full(len(rows), rate)
    return Balance(
        title="made", counts=table_of, rates=rates, expected_batch=rate * table_of.sum() / len(rows), delta=delta
    )


def printed(balance: Balance, width: int = 100, *, counted: bool = False) -> list[str]:
    console = Console(width=width, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(terminal_table(table(balance, counted=counted), width))
        return console.export_text().splitlines()


def test_two_clients_by_hand():
    """Mix of all 6:2:0 of 8; client 0 has 4:0:0, client 1 has 2:2:0: distances |1 - .75| and |.5 - .75|."""
    balance = balance_of([[4, 0, 0], [2, 2, 0]], rate=0.25, delta=0.25)
    assert balance.sizes.tolist() == [4, 4]
    assert balance.batches.tolist() == [1.0, 1.0]
    assert balance.distances.tolist() == [0.25, 0.25]
    assert balance.delta_holds.tolist() == [False, False]  # 0.25 is not below 1/4
    assert balance_of([[4, 0, 0], [2, 1, 0]], delta=0.3).delta_holds.tolist() == [False, True]
    assert balance_of([[4, 0, 0]], delta=None).delta_holds.tolist() == [True]


@given(rows=counts)
def test_distances_lie_in_0_1_and_equal_mixes_have_none(rows):
    balance = balance_of(rows)
    assert ((balance.distances >= 0) & (balance.distances < 1)).all()
    np.testing.assert_allclose(balance.shares.sum(1), 1)
    again = balance_of([[2 * n for n in rows[0]], [5 * n for n in rows[0]]])
    np.testing.assert_allclose(again.distances, 0, atol=1e-12)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "shards"])
def test_measured_against_the_labels_themselves(scheme):
    """Oracle: a loop over every example of the prepared run. Negative control: another seed deals otherwise."""
    base = prepare(from_mapping({"workload": "digits", "clients": 7, "partition": scheme}))
    balance = measure(base)
    slow = np.zeros((7, 10), dtype=np.int64)
    for client, part in enumerate(base.parts):
        for row in part.tolist():
            slow[client, int(base.workload.train.labels[row])] += 1
    assert np.array_equal(balance.counts, slow)
    assert balance.counts.sum() == 1437
    assert balance.sizes.tolist() == base.sizes
    other = measure(prepare(from_mapping({"workload": "digits", "clients": 7, "partition": scheme, "seed": 1})))
    assert not np.array_equal(other.counts, slow)


def test_a_batch_size_gives_every_client_its_own_rate():
    balance = measure(prepare(from_mapping({"clients": 5, "partition": "dirichlet", "batch_size": 250})))
    np.testing.assert_allclose(balance.rates, np.minimum(250 / balance.sizes, 1))
    assert balance.rates.max() == 1  # the client with 216 examples takes all of them
    assert "q = 0.6614 to 1" in conclusions(balance)[0][0]


def test_a_method_without_epsilon_needs_no_delta():
    balance = measure(prepare(from_mapping({"method": "sgd"})))
    assert balance.delta is None
    assert any("needs no delta" in line for line, _ in conclusions(balance))
    assert any(" -- " in f"{line} " for line in printed(balance))


def test_few_clients_have_a_row_each_and_many_are_summarised():
    few = printed(balance_of([[i + 1, 1, 0] for i in range(20)]), counted=True)
    assert sum(line.split()[:1] == [str(i)] for i in range(20) for line in few) == 20
    many = printed(balance_of([[i + 1, 1, 0] for i in range(100)]))
    first = [line.split()[0] for line in many if line.split()]
    assert first[2:] == [
        "0", "1", "2", "3", "4", "smallest", "5", "25", "median", "75", "95", "largest", "95", "96", "97", "98", "99",
    ]  # fmt: skip
    median = next(line for line in many if line.split()[:1] == ["median"])
    assert median.split()[1] == "52"  # sizes 2..101: 51.5


def test_delta_that_a_run_refuses_is_named():
    lines = conclusions(balance_of([[50, 0, 0], [150, 50, 0], [1, 0, 0]], delta=0.01))
    (line,) = [line for line, style in lines if style == "bold red"]
    assert line == ("delta = 0.01 is not below 1/N_k for 1 of 3 clients; a run refuses that: take delta < 0.005")
    assert not [style for _, style in conclusions(balance_of([[50, 0, 0]])) if style]  # negative control


def test_clients_with_less_than_one_example_a_step_are_counted():
    lines = conclusions(balance_of([[1, 0, 0], [2, 0, 0], [90, 0, 0]], rate=0.5))
    assert ("1 clients expect less than one example in a step: raise q, or take fewer clients", "yellow") in lines


def test_the_csv_holds_everything(tmp_path):
    balance = balance_of([[4, 0, 0], [1, 2, 0]], delta=0.3)
    (tmp_path / "p.csv").write_bytes(csv_of(balance))
    with (tmp_path / "p.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [[int(row[f"class_{c}"]) for c in range(3)] for row in rows] == balance.counts.tolist()
    assert [row["delta_below_1_over_n"] for row in rows] == ["false", "true"]
    assert [float(row["expected_batch"]) for row in rows] == [2.0, 1.5]
    assert [int(row["examples"]) for row in rows] == [4, 3]


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (5, 10), (100, 100)])
def test_the_plot_is_an_image_of_a_size_that_can_be_read(tmp_path, clients, classes):
    rng = np.random.default_rng(0)
    balance = balance_of((rng.integers(0, 9, (clients, classes)) + 1).tolist())
    (tmp_path / "p.png").write_bytes(png(plot(charts(balance), columns=1)))
    with Image.open(tmp_path / "p.png") as image:
        assert image.format == "PNG"
        assert 700 <= image.width <= 1800
        assert 500 <= image.height <= 1300
        assert len(image.convert("RGB").getcolors(2**24) or []) > 50  # something is drawn


@pytest.mark.parametrize("clients", [10, 10_000])
def test_bars_are_few_and_show_all_of_what_clients_hold(clients):
    """Every bar of shares is 100 % high; bars of counts sum to all examples."""
    rng = np.random.default_rng(0)
    balance = balance_of((rng.integers(0, 9, (clients, 12)) + 1).tolist())
    bars = [one for one in charts(balance)[0].series if one.kind == "bar"]
    assert len(bars) == 10
    assert bars[-1].name == "other classes"
    heights = np.sum([one.y for one in bars], axis=0)
    assert len(heights) == min(clients, BARS)
    assert heights == pytest.approx(balance.sizes if clients == 10 else np.full(BARS, 100.0))


# --- the command ---


def test_the_command_prints_and_writes(fedlsg, tmp_path):
    status, out, err = fedlsg("partition", "digits", "--clients", "100", "-c", "partition=dirichlet", "--out", "here")
    assert (status, err) == (0, "")
    assert "digits: 1,437 examples over 100 clients, dirichlet (alpha 0.5), seed 0" in out
    assert "median" in out
    names = ["partition.csv", "partition.html", "partition.png"]
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == names
    page = (tmp_path / "here" / "partition.html").read_text()
    for words in (
        "100 clients hold",
        "For simulations only",
        "smallest clients",
        "partition.csv</a>",
        '<svg role="img"',
    ):
        assert words in page
    assert max(len(line) for line in out.splitlines()) <= 110


def test_without_out_nothing_is_written(fedlsg, tmp_path):
    status, out, _ = fedlsg("partition", "digits", "--clients", "3")
    assert status == 0
    assert "--out DIR" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--clients", "1438"), "expected num_clients in 1..1437"),
        (("--clients", "0"), "expected clients=0 >= 1"),
        (("--clients", "900", "-c", "partition=dirichlet", "-c", "alpha=0.01"), "raise alpha or lower num_clients"),
        (("-c", "clints=3"), "unknown setting 'clints'; did you mean 'clients'?"),
        (("-c", "augment=flip-crop"), "augment=flip-crop needs images"),
    ],
)
def test_what_cannot_be_partitioned_is_one_line(fedlsg, tmp_path, options, message):
    status, _, err = fedlsg("partition", "digits", *options, "--out", "here")
    assert status == 1
    assert message in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_one_line(fedlsg, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = fedlsg("partition", "digits", "--clients", "2", "--out", str(tmp_path / "file"))
    assert status == 1
    assert "cannot write to" in err
    assert "choose another --out" in err
