"""Typical mistakes, made as a user makes them, and what fedlsg says: docs/results/errors.md.

    python -m benchmarks.errors > docs/results/errors.md   # some five minutes
    python -m benchmarks.errors --only labels              # those whose names have the word

Each is a program or a command of its own in a new folder. A message without the words that its
grade stands for has none, and the script ends with status 1.

A: names what is wrong with its values, the cause first, and the fix. B: one of them is missing.
C: true, and its reader has to guess. D: misleading, or of a library inside.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from textwrap import dedent

REPOSITORY = Path(__file__).parents[1]
BEFORE = """
import numpy as np, torch, fedlsg
from torch import nn

x = np.random.default_rng(0).normal(size=(300, 8)).astype("float32")
y = x[:, :3].argmax(1)
u = np.random.default_rng(1).normal(size=(60, 8)).astype("float32")
v = u[:, :3].argmax(1)


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


given = dict(
    model=net,
    train=(x, y),
    test=(u, v),
    loss=nn.CrossEntropyLoss(),
    clients=3,
    rounds=2,
    engine="local",
    quiet=True,
)
terms = dict(num_examples=300, epsilon=8.0, delta=1e-5)


def simulate(**changes):
    return fedlsg.simulate(**given | changes)


def private_step(**changes):
    return fedlsg.PrivateStep(net(), nn.CrossEntropyLoss(), **terms | changes)
"""
"""What the programs begin with."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """``code``: a command that begins with ``fedlsg``, or the end of a program. ``files``: what the
    folder holds, by name.
    """

    name: str
    code: str
    files: tuple[tuple[str, str], ...] = ()

    @property
    def in_shell(self) -> bool:
        """Whether it is a command."""
        return self.code.startswith("fedlsg ")


TABLE = """
        import pandas as pd

        draws = np.random.default_rng(2)

        def rows(count):
            table = pd.DataFrame(draws.normal(size=(count, 2)), columns=["lab_1", "lab_11"])
            places = draws.choice(["north", "south"], count)
            return table.assign(outcome=draws.integers(2, size=count), hospital=places)

        """
"""What programs about a table begin with, as far to the right as their code."""


def run(name: str, code: str, **files: str) -> Mistake:
    """A mistake; ``files`` by name, with ``_`` for the dot."""
    named = tuple((file.replace("_", "."), dedent(text)) for file, text in files.items())
    return Mistake(name=name, code=dedent(code).strip(), files=named)


def simulate(name: str, changes: str) -> Mistake:
    """A call of ``fedlsg.simulate`` with changes."""
    return run(name, f"simulate({changes})")


def own_loop(name: str, changes: str) -> Mistake:
    """A ``PrivateStep`` with changes, and one step of it."""
    return run(name, f"step = private_step({changes})\nstep.step(step.batches((x, y)))")


MISTAKES = (
    simulate("labels from 1", "train=(x, y + 1), test=(u, v + 1)"),
    simulate("labels from 1 in train alone", "train=(x, y + 1)"),
    simulate("too few outputs", "model=lambda: nn.Linear(8, 2)"),
    simulate("labels (N, 1)", "train=(x, y[:, None]), test=(u, v[:, None])"),
    simulate("labels float", "train=(x, y * 1.0), test=(u, v * 1.0)"),
    simulate("labels in words", "train=(x, np.array(list('abc'))[y])"),
    simulate(
        "numbers of shape (N,) for one output", "loss=nn.MSELoss(), model=lambda: nn.Linear(8, 1)"
    ),
    simulate(
        "wrong width", "model=lambda: nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 3))"
    ),
    simulate(
        "wrong width inside",
        "model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(12, 3))",
    ),
    simulate(
        "images for a Linear",
        "train=(x.reshape(-1, 2, 4), y), test=(u.reshape(-1, 2, 4), v)",
    ),
    simulate("lists", "train=(x.tolist(), y.tolist()), test=(u.tolist(), v.tolist())"),
    simulate("lengths differ", "train=(x, y[:-1])"),
    simulate("an empty client", "train=[(x, y), (x[:0], y[:0])], clients=None"),
    simulate("more clients than rows", "clients=400"),
    simulate("NaN in train", "train=(np.where(x > 2, np.nan, x), y)"),
    simulate("NaN in test", "test=(np.where(x > 1, np.nan, x)[:60], v)"),
    simulate(
        "integer inputs",
        "train=((x * 10).astype('int64'), y), test=((u * 10).astype('int64'), v)",
    ),
    simulate("no test rows", "test=None"),
    simulate("train without targets", "train=x"),
    simulate("a file that is not there", "train='nowhere.csv', test='nowhere.csv'"),
    run(
        "a label column misspelt",
        """
        import pandas
        table = pandas.DataFrame(x, columns=list("abcdefgh")).assign(kind=y)
        simulate(train=table, test=table[:60], targets="knd")
        """,
    ),
    run(
        "words in a column of numbers",
        """
        import pandas
        table = pandas.DataFrame(x, columns=list("abcdefgh")).assign(label=y)
        table["c"] = "red"
        simulate(train=table, test=table[:60])
        """,
    ),
    simulate("a model in place of a function", "model=net()"),
    simulate("a class that needs arguments", "model=nn.Linear"),
    run(
        "a tuple of outputs",
        """
        class Net(nn.Linear):
            def forward(self, x):
                return super().forward(x), x
        simulate(model=lambda: Net(8, 3))
        """,
    ),
    run(
        "a dict of outputs",
        """
        class Net(nn.Linear):
            def forward(self, x):
                return {"scores": super().forward(x)}
        simulate(model=lambda: Net(8, 3))
        """,
    ),
    run(
        "a frozen model",
        """
        def frozen():
            return net().requires_grad_(False)
        simulate(model=frozen)
        """,
    ),
    simulate(
        "BatchNorm",
        "model=lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))",
    ),
    simulate(
        "a lazy layer",
        "model=lambda: nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 3))",
    ),
    simulate("a loss class", "loss=nn.CrossEntropyLoss"),
    simulate("a loss that averages", "loss=lambda out, y: nn.functional.cross_entropy(out, y)"),
    simulate(
        "outputs and targets swapped",
        "loss=lambda y, out: nn.functional.cross_entropy(out, y, reduction='none')",
    ),
    simulate(
        "BCE with logits of shape (N, 1)",
        "loss=nn.BCEWithLogitsLoss(), model=lambda: nn.Linear(8, 1), "
        "train=(x, (y > 0).astype('float32')), test=(u, (v > 0).astype('float32'))",
    ),
    simulate("epsilon 0", "epsilon=0"),
    simulate("epsilon negative", "epsilon=-3.0"),
    simulate("epsilon with a comma", "epsilon='8,0'"),
    simulate("delta too large", "delta=0.1"),
    simulate("epsilon for a method without noise", "method='sgd', epsilon=8.0"),
    simulate("a batch size as rate", "sample_rate=64"),
    simulate("clip norm 0", "clip_norm=0.0"),
    simulate("no rounds", "rounds=0"),
    simulate("more clients a round than clients", "clients_per_round=9"),
    simulate("a name of Opacus", "max_grad_norm=1.0"),
    simulate("an argument misspelt", "epsilom=8.0"),
    simulate("a method misspelt", "method='lgs'"),
    simulate("a setting of another method", "method='dpsgd', rank=4"),
    simulate("a rank too large", "method='lsg', rank=100"),
    simulate("rows of clients out of range", "partition=[[0, 1], [2, 900]], clients=None"),
    simulate("rows of clients twice", "partition=[[0, 1], [1, 2]], clients=None"),
    simulate("a partition misspelt", "partition='dirichlt'"),
    simulate("a device that is not there", "device='cuda'"),
    run(
        "a folder that is taken",
        """
        open("notes.txt", "w").write("mine")
        simulate(out=".")
        """,
    ),
    own_loop("own loop: epsilon without delta", "delta=None"),
    own_loop("own loop: another number of rows", "num_examples=500"),
    own_loop("own loop: a name of Opacus", "max_physical_batch_size=32"),
    run(
        "own loop: a DataLoader's batch",
        """
        step = private_step()
        step.step((torch.tensor(x[:32]), torch.tensor(y[:32])))
        """,
    ),
    run(
        "own loop: more steps than planned",
        """
        step = private_step(steps=3)
        batches = step.batches((x, y))
        for _ in range(4):
            step.step(batches)
        """,
    ),
    run(
        "own loop: labels from 1",
        """
        step = private_step()
        step.step(step.batches((x, y + 1)))
        """,
    ),
    run("the targets of a table forgotten", TABLE + "simulate(train=rows(300), test=rows(60))"),
    run(
        "the targets of a table by another name",
        TABLE + "simulate(train=rows(300), test=rows(60), label='outcome')",
    ),
    run(
        "a setting of the hub for own data",
        TABLE + "simulate(train=rows(300), test=rows(60), label_column='outcome')",
    ),
    run(
        "a column of clients misspelt, and a transform",
        TABLE
        + """
        simulate(train=rows(300), test=rows(60), targets='outcome', partition='hosptial',
                 clients=None, transform=lambda lab_1, lab_11: torch.tensor([lab_1, lab_11]).T)
        """,
    ),
    run(
        "one output for a column of 0 and 1",
        TABLE
        + """
        simulate(train=rows(300), test=rows(60), targets='outcome', inputs=['lab_1', 'lab_11'],
                 model=lambda: nn.Linear(2, 1), loss=nn.BCEWithLogitsLoss())
        """,
    ),
    run(
        "a resumed run with another setting",
        """
        simulate(out="run", seed=1)
        simulate(out="run", seed=2, resume=True)
        """,
    ),
    run(
        "own loop: weights of a run",
        """
        run = simulate(out="run", method="dpsgd", epsilon=4.0)
        fedlsg.PrivateStep(run.model, nn.CrossEntropyLoss(), **terms)
        """,
    ),
    run(
        "own loop: the state forgotten",
        """
        import warnings

        warnings.simplefilter("error")
        step = private_step(steps=30, sample_rate=0.1, ledger="own.jsonl")
        batches = step.batches((x, y))
        for _ in range(30):
            step.step(batches)
        again = private_step(steps=30, sample_rate=0.1, ledger="own.jsonl", epsilon=8.01)
        again.step(again.batches((x, y)))
        """,
    ),
    run(
        "own loop: more steps with the old state",
        """
        state = private_step(steps=30, sample_rate=0.1, ledger="own.jsonl").state_dict()
        private_step(steps=60, sample_rate=0.1, ledger="own.jsonl").load_state_dict(state)
        """,
    ),
    own_loop("own loop: epsilon by the name of Opacus", "target_epsilon=3.0"),
    run("a file of data in the shell", "fedlsg run train.csv", train_csv="a,label\n1,0\n"),
    run("a data set of another name", "fedlsg run mnist"),
    run("FedAvg by its name", "fedlsg run --method fedavg"),
    run("epsilon next to no noise", "fedlsg run digits --epsilon 3 -c mechanism=none"),
    run("seeds as a list", "fedlsg compare digits --methods lsg --seeds 0,1,2"),
    run("figures into a file", "fedlsg export figures run --out f.pdf"),
    run(
        "fedlsg resume of a run of Python",
        """
        import subprocess, sys

        simulate(out="run")
        ended = subprocess.run(
            [sys.executable, "-m", "fedlsg", "resume", "run"], capture_output=True, text=True
        )
        sys.exit(ended.stderr)
        """,
    ),
    run("fedlsg train", "fedlsg train digits"),
    run("an option misspelt", "fedlsg run --epsilom 8"),
    run("an option of Opacus", "fedlsg run --target-epsilon 8"),
    run("a workload misspelt", "fedlsg run digitz"),
    run("a method misspelt in the shell", "fedlsg run --method lgs"),
    run("a data folder that is not there", "fedlsg run cifar10 --data-dir no/such/folder"),
    run("epsilon with a comma in the shell", "fedlsg run --epsilon 8,0"),
    run("a report of no run", "fedlsg report pictures"),
    run("a file of one's own that is not there", "fedlsg run mine.py:workload"),
    run("a function that is not there", "fedlsg run mine.py:workload", mine_py="def work(): ...\n"),
    run("an error in one's own file", "fedlsg run mine.py:workload", mine_py="import nunpy\n"),
    run(
        "a grid that is no TOML",
        "fedlsg compare --grid grid.toml",
        grid_toml="seeds = [1,\nranks 3\n",
    ),
    run(
        "a setting at the top of a grid",
        "fedlsg compare --grid grid.toml",
        grid_toml="rounds = 3\n[methods.lsg]\n",
    ),
    run(
        "a range that is none",
        "fedlsg compare digits --methods lsg --search learning_rate=high --on synthetic",
    ),
)


GRADES = {
    "labels from 1": (
        "A",
        "the model gives 3 outputs, for classes 0 to 2, and the targets of test are 1 to 3",
    ),
    "labels from 1 in train alone": (
        "A",
        "train targets are 1 to 3, and the 3 classes of own are 0 to 2: give targets - 1",
    ),
    "too few outputs": (
        "A",
        "the model gives 2 outputs, for classes 0 to 1, and the targets of test are 0 to 2",
    ),
    "labels (N, 1)": ("A", "takes one number of a class a row, (60,): give targets[:, 0]"),
    "labels float": (
        "A",
        "test targets are torch.float32, and CrossEntropyLoss takes the number of each class",
    ),
    "labels in words": ("A", "train targets are texts, those of test are numbers"),
    "numbers of shape (N,) for one output": ("A", "of one shape for MSELoss, got (1, 1) and (1,)"),
    "wrong width": ("A", "0 (Linear): takes 7 numbers a row, and the inputs have 8"),
    "wrong width inside": (
        "A",
        "2 (Linear): takes 12 numbers a row, and gets 16 from the layers before",
    ),
    "images for a Linear": ("A", "gets inputs of shape (2, 4): put nn.Flatten() before it"),
    "lists": ("A", "inputs are lists of numbers, which no model takes: give an array"),
    "lengths differ": (
        "B+",
        "expected as many inputs as targets, and one row at least, got 300 and 299",
    ),
    "an empty client": ("A", "train[1] has no rows: leave that client out"),
    "more clients than rows": ("A", "got clients=400: give clients=300 or fewer"),
    "NaN in train": ("A", "nan in row 9, column 7"),
    "NaN in test": ("A", "nan in row 0, column 6"),
    "integer inputs": ("A", "has weights of float32, and the inputs are int64"),
    "no test rows": ("A", "simulate needs test"),
    "train without targets": ("A", "train=ndarray: expected (inputs, targets)"),
    "a file that is not there": ("B+", "there is no such file"),
    "a label column misspelt": ("A", "train has no column 'knd'; did you mean 'kind'?"),
    "words in a column of numbers": ("B+", "columns c (row 0: 'red') are no numbers"),
    "a model in place of a function": ("A", "write model=lambda: MyModel(...)"),
    "a class that needs arguments": (
        "A",
        "the class is called without arguments; write model=lambda: Linear(...)",
    ),
    "a tuple of outputs": ("A", "got tuple: give a function that calls it with a part of them"),
    "a dict of outputs": ("B+", "got dict: give a function that calls it with a part of them"),
    "a frozen model": ("A", "call requires_grad_(True) on the layers to train"),
    "BatchNorm": ("A", "replace BatchNorm by GroupNorm"),
    "a lazy layer": ("A", "run model(x) once on a row or on zeros of its shape"),
    "a loss class": ("A", "write CrossEntropyLoss()"),
    "a loss that averages": (
        "A",
        "the loss averages over the batch; return the loss of each example",
    ),
    "outputs and targets swapped": ("A", "the loss gets outputs first and targets second"),
    "BCE with logits of shape (N, 1)": (
        "A",
        "of one shape for BCEWithLogitsLoss, got (1, 1) and (1,)",
    ),
    "epsilon 0": ("A", "epsilon=0.0 < inf: smaller is more private"),
    "epsilon negative": ("A", "epsilon=-3.0 < inf: smaller is more private"),
    "epsilon with a comma": ("A", "a decimal number has a point, 8.0"),
    "delta too large": ("A", "expected delta=0.1 < 1 / num_examples"),
    "epsilon for a method without noise": ("A", "epsilon=8 needs a mechanism that adds noise"),
    "a batch size as rate": ("A", "a number of rows is batch_size"),
    "clip norm 0": ("B+", "clip_norm=0.0 <= 1e+30: each gradient is shortened to it"),
    "no rounds": ("A", "expected 1 <= rounds=0"),
    "more clients a round than clients": (
        "A",
        "clients_per_round=9 <= clients=3: no more clients than there are",
    ),
    "a name of Opacus": ("A", "it is 'clip_norm' here"),
    "an argument misspelt": ("A", "did you mean 'epsilon'?"),
    "a method misspelt": ("A", "unknown method 'lgs'; did you mean 'lsg'?"),
    "a setting of another method": ("A", "which is one of dp-powersgd"),
    "a rank too large": ("A", "give rank=4, which carries 1 of 1"),
    "rows of clients out of range": (
        "B+",
        "client 1 has row numbers 2 to 900, and train has 300 rows",
    ),
    "rows of clients twice": ("A", "give each row to one client"),
    "a partition misspelt": ("A", "did you mean 'dirichlet'?"),
    "a device that is not there": ("A", "torch finds no CUDA device here; give device=cpu"),
    "a folder that is taken": ("A", "the folder is not empty; choose another out"),
    "own loop: epsilon without delta": ("A", "expected a delta below 1 / num_examples"),
    "own loop: another number of rows": ("A", "give num_examples=300"),
    "own loop: a name of Opacus": ("A", "it is 'microbatch_size' here"),
    "own loop: a DataLoader's batch": ("A", "write step.step(step.batches(data))"),
    "own loop: more steps than planned": (
        "A",
        "all steps=3 that the noise was planned for are taken",
    ),
    "own loop: labels from 1": ("A", "the targets of training are 1 to 3"),
    "the targets of a table forgotten": ("A", "targets= names the column of the targets"),
    "the targets of a table by another name": ("B+", "it is 'targets' here"),
    "a setting of the hub for own data": ("A", "give its column as targets="),
    "a column of clients misspelt, and a transform": ("A", "did you mean 'hospital'?"),
    "one output for a column of 0 and 1": ("A", "(outputs[:, 0], targets.float())"),
    "a resumed run with another setting": ("A", "as it began: give seed=1 (not 2)"),
    "own loop: weights of a run": ("B+", "give both the same ledger=PATH"),
    "own loop: the state forgotten": ("A", "call load_state_dict with their state"),
    "own loop: more steps with the old state": ("A", "to train further, leave the state out"),
    "own loop: epsilon by the name of Opacus": ("A", "it is 'epsilon' here"),
    "a file of data in the shell": ("B+", "data of your own are simulate(train=...)"),
    "a data set of another name": ("B+", "did you mean 'fashion-mnist'?"),
    "FedAvg by its name": ("A", "fedavg is called 'sgd' here"),
    "epsilon next to no noise": ("A", "leave this setting out"),
    "seeds as a list": ("A", "as --seeds 3 for the seeds 0, 1 and 2"),
    "figures into a file": ("A", "give --out f, and take its .pdf files"),
    "fedlsg resume of a run of Python": ("A", "call simulate there as before"),
    "fedlsg train": ("A", "did you mean fedlsg run?"),
    "an option misspelt": ("A", "did you mean --epsilon?"),
    "an option of Opacus": ("A", "it is --epsilon here"),
    "a workload misspelt": ("A", "unknown workload 'digitz'; did you mean 'digits'?"),
    "a method misspelt in the shell": ("A", "unknown method 'lgs'; did you mean 'lsg'?"),
    "a data folder that is not there": ("A", "there is no folder"),
    "epsilon with a comma in the shell": ("A", "a decimal number has a point, 8.0"),
    "a report of no run": ("B+", "pictures is no run directory: it does not exist"),
    "a file of one's own that is not there": ("B+", "workload: there is no file"),
    "a function that is not there": ("A", "has no 'workload'; did you mean 'work'?"),
    "an error in one's own file": ("A", "line 1: ModuleNotFoundError: No module named 'nunpy'"),
    "a grid that is no TOML": ("A", "is no TOML file"),
    "a setting at the top of a grid": ("A", "it is a setting: give settings under [settings]"),
    "a range that is none": ("A", "expected a list of values such as learning_rate=A,B,C"),
}
"""A grade for each mistake, and the words of its message that the grade stands for."""


def message_of(mistake: Mistake) -> tuple[str, int]:
    """The last message of a program or command, and how many frames of fedlsg are above it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in mistake.files:
            Path(folder, name).write_text(text)
        if mistake.in_shell:
            command = [sys.executable, "-m", "fedlsg", *mistake.code.split()[1:]]
        else:
            Path(folder, "program.py").write_text(f"{BEFORE}{mistake.code}\n")
            command = [sys.executable, "program.py"]
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path.strip(os.pathsep), "COLUMNS": "1000"},
        )
        said = done.stderr.replace(folder, ".").strip()
        if done.returncode == 0:
            return f"no error: {done.stdout[-200:]} {said[-200:]}", 0
    frames = sum(
        f'File "{REPOSITORY}' in line or "site-packages" in line for line in said.splitlines()
    )
    return re.split(r"\n(?=\S)", said)[-1].strip(), frames


LONGEST = 360
"""Characters of a message that the table shows."""


def short(text: str) -> str:
    """A message without the module of its error, and without the end of a long one."""
    text = re.sub(r"^(?:\w+\.)+(?=\w+Error: )", "", text)
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/fedlsg-ledger-\w+", ".", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def grade_of(mistake: Mistake, message: str) -> str:
    """The grade; a question mark where the message has other words than it was given for."""
    grade, words = GRADES[mistake.name]
    return grade if words in " ".join(message.split()) else "?"


HEAD = """# Typical mistakes

What fedlsg says to {count} mistakes that people make, each a program or a command of its own in a
new folder. `python -m benchmarks.errors > docs/results/errors.md` ran them and wrote this page, on
Python {python} and torch {torch}. From Python at most {frames} frame of fedlsg is above a message
(`FEDLSG_TRACEBACK=full` shows all of them), from the shell none.

The grades are those of the person who wrote the messages, and nobody else has looked. A names what
is wrong with its values, the cause first, and the fix. Of a B one is missing (B+: it is plain from
the rest). A C is true, and its reader has to guess. A D misleads, or is of a library inside.
{grades}.

The programs begin with:

```python
{before}
```

"""


def head(found: Sequence[tuple[Mistake, tuple[str, int]]]) -> str:
    """The page above its table."""
    counts = Counter(grade_of(one, message) for one, (message, _) in found)
    return HEAD.format(
        count=len(found),
        python=platform.python_version(),
        torch=version("torch"),
        frames=max(frames for _, (_, frames) in found),
        grades=", ".join(f"{grade}: {count}" for grade, count in sorted(counts.items())),
        before=BEFORE.strip(),
    )


def rows(found: Sequence[tuple[Mistake, tuple[str, int]]]) -> Iterator[str]:
    """The table of the page."""
    yield "| grade | mistake | what is said |"
    yield "|---|---|---|"
    for mistake, (message, _) in found:
        code = "<br>".join(f"`{line}`" for line in mistake.code.splitlines())
        lines = [(name, line) for name, text in mistake.files for line in text.splitlines()]
        files = "".join(f"<br>{name}: `{line}`" for name, line in lines)
        said = short(" ".join(message.split())).replace("|", "\\|").replace("<", "&lt;")
        yield f"| {grade_of(mistake, message)} | {mistake.name}<br>{code}{files} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    chosen = [one for one in MISTAKES if options.only in one.name]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(zip(chosen, pool.map(message_of, chosen), strict=True))
    print(head(found) + "\n".join(rows(found)))
    if any(grade_of(one, message) == "?" for one, (message, _) in found):
        sys.exit("a message has other words than its grade")


if __name__ == "__main__":
    main()
