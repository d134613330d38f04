"""What ``fedlsg`` prints without a command: the three things to do first, each with its command."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

HEAD = "fedlsg simulates federated learning with differential privacy. Three things to do first:"
STEPS = (
    (
        "Train a model: real handwritten digits, five clients, epsilon 8. No download.",
        "fedlsg run",
    ),
    (
        "Compare methods at the same epsilon, and one without: a table, plots, report.html.",
        "fedlsg compare digits --methods lsg,dpsgd,sgd",
    ),
    (
        "Attack what the clients send: try to rebuild training images from it.",
        "fedlsg attack --compare lsg,dpsgd --images 4 --seconds 5",
    ),
)
"""What each does, and its command. All of them work without any data of the user's own."""
MORE = (
    ("fedlsg --help", "lists all commands."),
    ("fedlsg COMMAND --help", "lists the options of one."),
    ("fedlsg docs", "lists the pages of the documentation; fedlsg docs PAGE shows one."),
)


def print_first_steps(console: Console) -> None:
    """The page, without markup in a log."""
    console.print(Text(HEAD))
    for number, (what, command) in enumerate(STEPS, 1):
        console.print()
        console.print(Text(f"{number}. {what}"))
        console.print(Padding(Text(command, style="bold"), (0, 0, 0, 5)), soft_wrap=True)
    console.print()
    for command, words in MORE:
        console.print(Text.assemble((command, "bold"), f"  {words}"))
