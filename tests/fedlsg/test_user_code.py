"""Code by name: files, modules and entry points; and that nothing runs where it was not allowed."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlsg.user_code import is_permitted, is_reference, load, loading, offered, permit, text_files
from fedlsg.user_code.failure import depends_on_values, describe
from fedlsg.user_code.source_digest import source_of


@pytest.fixture(autouse=True)
def allowed(monkeypatch, tmp_path):
    """Code may run, and modules of a test are gone after it."""
    monkeypatch.setattr(loading, "is_permitted", lambda name: True)
    monkeypatch.setattr(loading, "_FILES", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # of another file of tests
    monkeypatch.chdir(tmp_path)
    offered.cache_clear()
    yield
    offered.cache_clear()
    forget_modules_of(tmp_path)


def forget_modules_of(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(folder) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def write(name: str, code: str) -> Path:
    path = Path(name).resolve()
    path.write_text(code)
    return path


@pytest.mark.parametrize("other", ["mine.py", "near.py"])
def test_a_file_that_changes_between_the_comparison_and_its_run_does_not_run(
    other, tmp_path, monkeypatch
):
    monkeypatch.setattr(text_files, "_COMPARED", {})
    mine = write("mine.py", "from near import ran\n")
    write("near.py", "ran = lambda: 1\n")
    name = f"{mine}:ran"
    permit(name, files=source_of(name).files)
    write(other, Path(other).read_text() + "open('marker', 'w').close()\n")
    with pytest.raises(
        ImportError, match=rf"{other} changed after it was compared with the run's record"
    ):
        load(name, "workload")
    assert not Path("marker").exists()
    permit(name)  # by its user, who names no text
    assert load(name, "workload")() == 1
    assert Path("marker").exists()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("mine.py:workload", True),
        ("/a/mine.py:w", True),
        ("package.module:w", True),
        ("mine.py", True),
        ("digits", False),
        ("glue-sst2", False),
    ],
)
def test_what_names_code(name, code):
    assert is_reference(name) is code


@pytest.mark.parametrize("stem", ["json", "colorsys", "torch", "fedlsg", "my-file", "a.b"])
def test_a_file_hides_no_module_of_python_or_of_a_package(stem):
    """colorsys: not loaded yet, and somebody imports it later."""
    sys.modules.pop("colorsys", None)
    before = sys.modules.get(stem)
    write(f"{stem}.py", "def f(): return 1\n")
    assert load(f"{stem}.py:f", "workload")() == 1
    assert sys.modules.get(stem) is before
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)


def test_each_file_imports_the_neighbours_of_its_own_folder(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
        write(f"{number}/helper.py", f"def g(): return {number}\n")
        write(f"{number}/mine.py", "import helper\ndef f(): return helper.g()\n")
    functions = [load(f"{number}/mine.py:f", "workload") for number in (1, 2, 3)]
    assert [function() for function in functions] == [1, 2, 3]
    write("1/mine.py", "import helper\ndef f(): return 10 * helper.g()\n")
    assert load("1/mine.py:f", "workload")() == 10


MISTAKES = {
    "nowhere.py:f": "workload: there is no file",
    "mine.py:g": r"mine.py has no 'g'.*expected workload as FILE.py:NAME",
    "mine.py": r"workload 'mine.py': expected FILE.py:NAME, as mine.py:workload",
    "mine.py:": r"expected FILE.py:NAME, as mine.py:workload",
    ":f": r"expected FILE.py:NAME, as mine.py:workload",
    "nomodule:f": r"workload 'nomodule': no module of this name is installed; a file is named as "
    r"FILE.py:NAME",
    "..:f": "no module of this name",
    "json:nothing": "json has no 'nothing'",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_name_that_names_nothing_is_refused_in_one_line(name):
    write("mine.py", "def f(): return 1\ndef _hidden(): return 1\n")
    with pytest.raises(ValueError, match=MISTAKES[name]) as error:
        load(name, "workload")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\ndef f(:\n    pass\n", "mine.py, line 2: SyntaxError"),
        ("x = 1\n\ny = undefined\n", "mine.py, line 3: NameError: name 'undefined' is not defined"),
        ("def g(): raise KeyError(3)\ng()\n", "mine.py, line 1: KeyError: 3"),
        ("import json\njson.loads('{')\n", "mine.py, line 2: JSONDecodeError"),
        ("import helper\n", "helper.py, line 2: SyntaxError"),
        ("import missing_module\n", "mine.py, line 1: ModuleNotFoundError"),
    ],
)
def test_code_that_fails_names_file_and_line_and_runs_again(code, words):
    write("helper.py", "x = 1\ndef (\n")
    mine = write("mine.py", code)
    for _ in range(2):
        with pytest.raises(ImportError, match=words):
            load("mine.py:f", "workload")
        assert "mine" not in sys.modules
    mine.write_text("def f(): return 1\n")
    assert load("mine.py:f", "workload")() == 1


@pytest.mark.parametrize("name", ["evil.py:f", "evil:f", "os:system", "evil.py"])
def test_a_name_that_is_not_permitted_runs_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "is_permitted", is_permitted)
    permit("other.py:f", "evil.py:g")
    monkeypatch.syspath_prepend(str(tmp_path))
    write(
        "evil.py",
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\ndef f(): pass\n",
    )
    with pytest.raises(
        ValueError, match="names code, and this process runs none that a setting names"
    ):
        load(name, "workload")
    assert not (tmp_path / "ran").exists()
    permit("evil.py:f")  # negative control
    load("evil.py:f", "workload")
    assert (tmp_path / "ran").exists()


def caught(action):
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("no error")


def broken():
    return nn.Linear(3, 2)(torch.zeros(1, 4))  # the line that is named


def test_the_line_is_the_innermost_of_the_user_and_not_of_torch():
    error = caught(lambda: nn.Sequential(nn.Flatten(0))(broken()))
    text = describe(error)
    assert text.startswith(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x4 and 3x2) (test_user_code.py, "
        "line "
    )
    assert text.endswith(": return nn.Linear(3, 2)(torch.zeros(1, 4))  # the line that is named)")


@pytest.mark.parametrize(
    ("action", "depends"),
    [
        (broken, False),
        (lambda: torch.zeros(2).nothing, False),
        (lambda: len(3), False),
        (lambda: nn.Embedding(2, 3)(torch.tensor([5])), True),
        (lambda: nn.functional.one_hot(torch.tensor([4]), 2), True),
        (lambda: torch.zeros(2, 2)[:, torch.tensor([3])], True),
        (lambda: torch.zeros(2).sum(3), False),
        (lambda: nn.BCELoss()(torch.tensor([2.0]), torch.tensor([1.0])), True),
        (lambda: {}["x"], True),
    ],
)
def test_other_values_are_proposed_only_where_they_may_help(action, depends):
    assert depends_on_values(caught(action)) == depends
