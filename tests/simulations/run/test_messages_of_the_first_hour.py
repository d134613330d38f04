"""What natural mistakes of the first hour say: the fix, and nothing that leads elsewhere."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedlsg import Method, PrivateStep, strategies
from fedlsg.simulations import workloads
from fedlsg.simulations.cli.command_line import main
from fedlsg.simulations.server.restore import restore
from fedlsg.simulations.storage.examined import examine
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.round_report import RoundReport
from tests.simulations.support.own import quick, refused

DRAWS = np.random.default_rng(2)


def table(count):
    places = DRAWS.choice(["north", "south"], count)
    numbers = pd.DataFrame(DRAWS.normal(size=(count, 2)), columns=["lab_1", "lab_11"])
    return numbers.assign(outcome=DRAWS.integers(2, size=count), hospital=places)


TABLES = {"train": table(60), "test": table(24)}
BY_COLUMN = {"targets": "outcome", "inputs": ["lab_1", "lab_11"], **TABLES}


@pytest.fixture
def said(capsys, monkeypatch):
    """The error of a command, in one line."""

    def error_of(*arguments):
        monkeypatch.setattr("sys.argv", ["fedlsg", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (1, 2)
        return capsys.readouterr().err.replace("\n", " ")

    return error_of


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"label": "outcome"}, "it is 'targets' here"),
        ({"labels": "outcome"}, "it is 'targets' here"),
        ({"label_column": "outcome"}, "give its column as targets="),
        ({"input_columns": "lab_1"}, "give their columns as inputs="),
    ],
)
def test_settings_of_the_hub_lead_to_the_arguments_of_own_data(given, words, tmp_path):
    with refused(words):
        quick(tmp_path / "run", **TABLES, **given)


def test_label_of_a_data_set_of_the_hub_is_its_column(tmp_path):
    with refused("label_column"):
        quick(tmp_path / "run", workload="hf-text", label="outcome")


def test_targets_that_are_forgotten_are_asked_for_and_no_column_is_guessed(tmp_path):
    with pytest.raises(ValueError, match="targets= names the column of the targets") as found:
        quick(tmp_path / "run", **TABLES)
    assert "did you mean" not in str(found.value)


def test_a_misspelt_label_column_is_guessed(tmp_path):
    with refused("did you mean 'outcome'?"):
        quick(tmp_path / "run", **{**BY_COLUMN, "targets": "outcom"})


@pytest.mark.parametrize("transform", [None, lambda *columns: torch.tensor(columns).T])
def test_a_column_of_clients_is_looked_for_before_anything_reads_the_columns(transform, tmp_path):
    given = {**TABLES, "targets": "outcome", "transform": transform, "clients": None}
    with refused("partition=hosptial", "did you mean 'hospital'?"):
        quick(tmp_path / "run", partition="hosptial", **given)


def test_one_output_for_a_column_says_what_the_loss_may_be_and_that_works(tmp_path):
    given = {**BY_COLUMN, "model": lambda: nn.Linear(2, 1)}
    fix = "lambda outputs, targets: nn.BCEWithLogitsLoss(reduction='none')(outputs[:, 0], "
    with refused(fix + "targets.float())"):
        quick(tmp_path / "run", **given, loss=nn.BCEWithLogitsLoss())
    own = eval(fix + "targets.float())")  # the very words of the message
    assert quick(tmp_path / "run", **given, loss=own).summary["rounds"] == 1


def test_epsilon_next_to_no_noise_may_be_left_out(tmp_path):
    given = {"mechanism": "none", "noise_multiplier": None}
    with refused("epsilon=3", "leave this setting out"):
        quick(tmp_path / "run", epsilon=3, **given)
    quick(tmp_path / "run", **given)


@pytest.mark.parametrize(
    ("arguments", "words", "never"),
    [
        (["run", "mnist"], "did you mean 'fashion-mnist'", "--unit"),
        (["run", "train.csv"], "fedlsg docs own", "did you mean"),
        (["run", "--method", "fedavg"], "called 'sgd' here", "or --method"),
        (["run", "own"], "fedlsg docs own", "--carrier"),
        (["compare", "digits", "--methods", "lsg", "--seeds", "0,1,2"], "--seeds 3", "--vary"),
        (["export", "figures", "run", "--out", "f.pdf"], "give --out f", "no run directory"),
        (["run", "lowrank"], "or --carrier low-rank?", "--unit"),
    ],
)
def test_a_command_names_the_way_and_no_other_thing(arguments, words, never, said):
    text = said(*arguments)
    assert words in text
    assert never not in text


@pytest.mark.parametrize("part", ["workload", "method"])
def test_resume_in_the_shell_of_a_run_of_python_names_the_call(part, tmp_path, said):
    def recipe(*, mechanism, server):
        """Mine."""
        return Method(name="mine", mechanism=mechanism, server=server)

    given = {"workload": "digits", "method": recipe, "train_rows": 60} if part == "method" else {}
    quick(tmp_path / "run", **given)
    strategies.forget()
    workloads._GIVEN.clear()
    text = said("resume", str(tmp_path / "run"))
    assert "resume=True" in text
    assert "did you mean" not in text
    assert "--carrier" not in text


def test_a_payload_that_an_interruption_cut_off_is_no_change_of_the_run(stopped):
    path = stopped.path / "checkpoint/outbox/client-000001.bin"
    path.write_bytes(path.read_bytes()[:-3])
    examined = examine(RunDir(stopped.path))
    assert examined.changed
    assert examined.unused_changes(RunDir(stopped.path), where="here") == []
    notes = restore(RunDir(stopped.path)).notes
    assert [note for note in notes if "was cut off when the run ended" in note]
    assert not [note for note in notes if "changed since the run" in note]


def test_a_changed_file_is_still_said(stopped):
    """The negative control."""
    with (stopped.path / "config.toml").open("a") as file:
        file.write("# mine\n")
    assert (
        "config.toml"
        in examine(RunDir(stopped.path)).unused_changes(RunDir(stopped.path), where="here")[0]
    )


def test_reasons_have_words_and_no_numbers_that_nobody_explains():
    report = RoundReport(round=2, asked=[0, 1])
    report.rejected = {0: "[1003] round 2 would pass", 1: "no reply"}
    assert report.reasons == "0: round 2 would pass; 1: no reply"
    assert report.refused(1003) == {0}


TERMS = {"num_examples": 60, "sample_rate": 0.2, "delta": 1e-3, "epsilon": 4.0}


def step_of(net, ledger, **given):
    return PrivateStep(net, nn.CrossEntropyLoss(), ledger=ledger, **{**TERMS, **given})


def trained(net, ledger):
    step = step_of(net, ledger, steps=20)
    batches = step.batches((torch.randn(60, 8), torch.arange(60) % 3))
    for _ in range(20):
        step.step(batches)
    return step


def test_a_forgotten_state_is_warned_of_where_the_rest_of_epsilon_buys_much_noise(tmp_path):
    net = nn.Linear(8, 3)
    step = trained(net, tmp_path / "own.jsonl")
    batches = step.batches((torch.randn(60, 8), torch.arange(60) % 3))
    again = step_of(net, tmp_path / "own.jsonl", steps=20, epsilon=4.01)
    said = r"20 steps at noise multiplier .*load_state_dict"
    with pytest.warns(RuntimeWarning, match=said) as caught:
        again.step(batches)
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_more_epsilon_for_new_steps_is_not_warned_of_and_the_old_state_says_so(tmp_path):
    net = nn.Linear(8, 3)
    step = trained(net, tmp_path / "own.jsonl")
    batches = step.batches((torch.randn(60, 8), torch.arange(60) % 3))
    more = step_of(net, tmp_path / "own.jsonl", steps=25, epsilon=8.0)
    with pytest.raises(ValueError, match="load the model alone into a new step"):
        more.load_state_dict(step.state_dict())
    more.step(batches)


@pytest.mark.parametrize("name", ["target_epsilon", "max_grad_norm", "batch_size"])
def test_names_of_opacus_get_ours_and_no_long_list(name):
    with pytest.raises(ValueError, match=f"no setting '{name}'; it is") as found:
        PrivateStep(nn.Linear(8, 3), nn.CrossEntropyLoss(), **TERMS, steps=5, **{name: 1.0})
    assert "it has" not in str(found.value)
