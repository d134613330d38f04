"""How large the house is, and how dense: the numbers of docs/results/house.md.

    python -m benchmarks.house

Size is counted in nodes of the syntax trees (``ast.walk``): lines can be packed, and files can be
cut. Density is nodes for each line of code: one that is neither blank, comment, docstring nor
import. Files are those that git tracks.
"""

import ast
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from fedlsg.simulations.settings.published import presets
from fedlsg.simulations.settings.settings import all_settings

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ("fedlsg", "strategies", "simulations")
HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
STARTS = 7


def tracked(*folders: str, ending: str = ".py") -> list[Path]:
    """The files of folders that git tracks."""
    names = subprocess.check_output(["git", "ls-files", *folders], cwd=ROOT, text=True).split()
    return [ROOT / name for name in names if name.endswith(ending) and (ROOT / name).is_file()]


def nodes_of(file: Path) -> int:
    """Nodes of a file's syntax tree."""
    return sum(1 for _ in ast.walk(ast.parse(file.read_text())))


def code_lines(file: Path) -> int:
    """Lines that are neither blank, comment, docstring nor import."""
    text = file.read_text()
    no_code: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            no_code |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, HAS_DOCSTRING) and ast.get_docstring(node, clean=False):
            docstring = node.body[0]
            no_code |= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(
        bool(line) and not line.startswith("#") and place not in no_code for place, line in lines
    )


def seconds_of(code: str) -> float:
    """Wall seconds of a new process that runs the code, the median of several."""
    taken = []
    for _ in range(STARTS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        taken.append(time.perf_counter() - start)
    return median(taken)


def main() -> None:
    """Print the table."""
    source = tracked(*SOURCE)
    nodes = sum(map(nodes_of, source))
    long_lines = sum(len(line) > 100 for file in source for line in file.read_text().splitlines())
    requirements = (ROOT / "requirements.txt").read_text().splitlines()
    dependencies = [line for line in requirements if line and not line.startswith("#")]
    numbers = {
        "nodes of source": f"{nodes:,}",
        **{f"  {top}": f"{sum(map(nodes_of, tracked(top))):,}" for top in SOURCE},
        "nodes of tests": f"{sum(map(nodes_of, tracked('tests'))):,}",
        "nodes of benchmarks": f"{sum(map(nodes_of, tracked('benchmarks'))):,}",
        "rows of tables in TOML": f"{len(presets())}",
        "nodes a code line, source": f"{nodes / sum(map(code_lines, source)):.2f}",
        "lines over 100 characters, source": f"{long_lines}",
        "files of source": f"{len(source)}",
        "settings of a run": f"{len(all_settings())}",
        "dependencies": f"{len(dependencies)}",
        "import fedlsg, seconds": f"{seconds_of('import fedlsg') - seconds_of('pass'):.3f}",
    }
    for name, number in numbers.items():
        print(f"{name:36}{number:>12}")


if __name__ == "__main__":
    main()
