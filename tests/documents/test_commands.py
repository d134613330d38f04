"""Every command line of the documents is one that the programs take, with settings that exist and are in range."""

import re

import click
import pytest

from tests.documents.blocks import DOCUMENTS, commands, inline, name_of
from tests.documents.check_commands import check, check_flwr, options_without_place

BENCHMARK = re.compile(r"`(python (?:-m benchmarks\.|benchmarks/)[^`\n]+)`")


def problems(text: str) -> list[str]:
    """Command lines of a document that are wrong, each with the reason."""
    found = []
    sentences = inline(text)
    for line in [*commands(text, "fedlsg"), *sentences]:
        try:
            check(line, named=line in sentences)
        except (ValueError, KeyError, OSError, click.ClickException) as error:
            said = error.format_message() if isinstance(error, click.ClickException) else str(error)
            found += [] if "needs the package: pip install" in said else [f"{line}: {said}"]
    for line in commands(text, "flwr run"):
        try:
            check_flwr(line)
        except (ValueError, click.ClickException) as error:
            found.append(f"{line}: {error}")
    for line in [
        *commands(text, "python -m benchmarks"),
        *commands(text, "python benchmarks"),
        *BENCHMARK.findall(text),
    ]:
        try:
            found += [f"{line}: no option {option}" for option in options_without_place(line)]
        except FileNotFoundError as error:
            found.append(f"{line}: no file {error.filename}")
    return found


def test_every_command_line_is_taken(reader):
    wrong = {name_of(path): found for path in DOCUMENTS if (found := problems(path.read_text()))}
    assert not wrong, "\n".join(f"{name}: {line}" for name, lines in wrong.items() for line in lines)


@pytest.mark.parametrize("planted_line", [
    "fedlsg rnu",
    "fedlsg run --epsilom 3",
    "fedlsg run --epsilon three",
    "fedlsg run -c learning_rte=0.1",
    "fedlsg run -c sparsity=1.5",
    "fedlsg run --method dpsgd --rank 4",
    "fedlsg run --method gone",
    "fedlsg run --codec gone",
    "fedlsg run --preset gone",
    "fedlsg compare digits --methods lsg,gone",
    "fedlsg compare --grid docs/results/gone.toml",
    "fedlsg compare ... --axes bytes",
    "fedlsg compare digits --methods lsg --search rank=2,4 --on gone",
    "fedlsg attack --membership -c rnk=4",
    "fedlsg settings gone",
    "fedlsg list presets gone",
    "fedlsg resume",
    "fedlsg attack [RUN] --membershi",
    "flwr run . --run-config \"rnk=8\"",
    "flwr run . --run-config \"rank=-8\"",
    "fedlsg inspect cifar10 --method rs",
    "fedlsg audit digits --method lsg",
    "fedlsg attack RUN --attacks dlg,gone",
    "python -m benchmarks.speed.step --pears 1",
    "python benchmarks/speed/step.py --pears 1",
    "python benchmarks/gone.py",
    "python -m benchmarks.gone",
    "fedlsg run && fedlsg rnu",
    "fedlsg run \\\n  --epsilom 3",
])  # fmt: skip
def test_a_wrong_command_line_is_found(reader, planted_line):
    assert len(problems(f"Text.\n\n```bash\n{planted_line}\n```\n")) == 1
