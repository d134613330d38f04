"""The digest of own code: other code has another one, the same code in another process the same."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedlsg.user_code import load, loading
from fedlsg.user_code.digest import digest_of
from fedlsg.user_code.source_digest import digest_of_source
from tests.fedlsg.test_user_code import forget_modules_of
from tests.places import REPOSITORY


def in_script(code: str, name: str = "f", **values: Any) -> Any:
    """A function of a notebook's cell: it has no file, and its module is the script."""
    space: dict[str, Any] = {"__name__": "__main__", **values}
    exec(compile(code, "<cell 1>", "exec"), space)
    return space[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "is_permitted", lambda name: True)
    monkeypatch.setattr(loading, "_FILES", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    forget_modules_of(tmp_path)


def of_file(path: Path, **neighbours: str) -> str:
    """The digest of ``f`` of a file, loaded as in a new process."""
    for name in ("mine", *neighbours):
        sys.modules.pop(name, None)
    loading._FILES.clear()
    for name, code in neighbours.items():
        (path.parent / f"{name}.py").write_text(code)
    return digest_of(load(f"{path}:f", "workload"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("def f(o, t): return o * 2", "def f(o, t): return o * 3"),
        ("f = lambda: 1.5", "f = lambda: 2.5"),
        ("def f(): return len", "def f(): return sum"),
        ("def f():\n def g(): return 'a'\n return g", "def f():\n def g(): return 'b'\n return g"),
        ("def f(x=3): return x", "def f(x=4): return x"),
        ("def f(*, x=3): return x", "def f(*, x=4): return x"),
        ("def g(w):\n return lambda: w\nf = g(3)", "def g(w):\n return lambda: w\nf = g(4)"),
        ("W = 3\ndef f(): return W", "W = 4\ndef f(): return W"),
        ("def g(): return 1\ndef f(): return g()", "def g(): return 2\ndef f(): return g()"),
        (
            "class f:\n def a(s): return 1\n def b(s): return 1",
            "class f:\n def a(s): return 1\n def b(s): return 2",
        ),
        (
            "class G:\n def a(self): return 1\nf = lambda: G()",
            "class G:\n def a(self): return 2\nf = lambda: G()",
        ),
        (
            "class G:\n def __init__(s, a): s.a = a\nf = G(1)",
            "class G:\n def __init__(s, a): s.a = a\nf = G(2)",
        ),
        (
            "import functools\nf = functools.partial(int, base=2)",
            "import functools\nf = functools.partial(int, base=8)",
        ),
    ],
)
def test_other_code_of_a_notebook_has_another_digest(first, second):
    assert digest_of(in_script(first)) == digest_of(in_script(first))
    assert digest_of(in_script(first)) != digest_of(in_script(second))


def test_a_file_counts_whole_and_so_do_the_neighbours_that_it_imports(folder):
    mine = folder / "mine.py"
    mine.write_text("import helper\nfrom third import g\ndef f(): return helper.h() + g()\n")
    code = {
        "helper": "import fourth\ndef h(): return 1\n",
        "third": "def g(): return 1\n",
        "fourth": "X = 1\n",
    }
    first = of_file(mine, **code)
    assert of_file(mine, **code) == first
    for name in code:
        assert of_file(mine, **{**code, name: code[name] + "Y = 2\n"}) != first
    assert of_file(mine, **code, unused="X = 1\n") == first
    mine.write_text(mine.read_text() + "# a comment\n")
    assert of_file(mine, **code) != first


@pytest.mark.slow
def test_another_process_has_the_same_digest():
    """Python orders the strings of a set anew in each process."""
    code = "def f(x): return x in {'a', 'b', 'c', 'd'} or 1"
    program = (
        "from tests.fedlsg.test_code_digest import digest_of, in_script\n"
        f"print(digest_of(in_script({code!r})))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {digest_of(in_script(code)) + "\n"}


FILES = {
    "mine": "import direct\ndef f():\n    import lazy\n    from package.inner import g\n",
    "direct": "try:\n    import through\nexcept ImportError:\n    pass\n",
    "through": "X = 1\n",
    "lazy": "X = 1\n",
    "package/__init__": "X = 1\n",
    "package/inner": "from . import near\nfrom ..other import X\n",
    "package/near": "X = 1\n",
    "other": "X = 1\n",
}


def test_the_digest_of_sources_runs_nothing_and_has_all_that_may_run(tmp_path):
    """Unlike ``digest_of``: what a function imports when it is called, and packages in the
    folder.
    """
    (tmp_path / "package").mkdir()
    for name, code in FILES.items():
        (tmp_path / f"{name}.py").write_text(f"{code}raise SystemExit\n")
    mine, unused = f"{tmp_path}/mine.py:f", tmp_path / "unused.py"
    first = digest_of_source(mine)
    unused.write_text("X = 1\n")
    assert digest_of_source(mine) == digest_of_source(f"{tmp_path}/mine.py:g") == first
    for name in FILES:
        path = tmp_path / f"{name}.py"
        before = path.read_text()
        path.write_text(f"{before}# other\n")
        assert digest_of_source(mine) != first, name
        path.write_text(before)
    (tmp_path / "through.py").rename(tmp_path / "through.so")
    assert digest_of_source(mine) != first


def test_the_digest_of_a_module_is_that_of_its_file_and_nowhere_it_is_empty(tmp_path, monkeypatch):
    (tmp_path / "parcel").mkdir()
    (tmp_path / "parcel/__init__.py").write_text("raise SystemExit\n")
    (tmp_path / "parcel/inner.py").write_text("import parcel.near\n")
    (tmp_path / "parcel/near.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = digest_of_source("parcel.inner:f")
    assert first != digest_of_source("parcel:f")
    (tmp_path / "parcel/near.py").write_text("X = 2\n")
    assert digest_of_source("parcel.inner:f") not in (first, "")
    assert digest_of_source("numpy.linalg:f") != ""
    assert {
        digest_of_source(name) for name in ("nowhere.py:f", "nomodule:f", "os:f", ".:f", "sys:f")
    } == {""}


@pytest.mark.parametrize("line", ["from pkg import *", "from pkg.sub import *", "import pkg.star"])
def test_a_star_counts_all_modules_that_it_may_run(line, tmp_path):
    mine, hidden = tmp_path / "mine.py", tmp_path / "pkg/sub/hidden.py"
    hidden.parent.mkdir(parents=True)
    mine.write_text(line)
    (tmp_path / "pkg/__init__.py").write_text("__all__ = ['sub']")
    (tmp_path / "pkg/star.py").write_text("from .sub import *")
    (tmp_path / "pkg/sub/__init__.py").write_text("__all__ = ['hidden']\nfrom . import *")
    hidden.write_text("A = 1")
    before = digest_of_source(f"{mine}:f")
    hidden.write_text("A = 2")
    assert digest_of_source(f"{mine}:f") != before
