"""The public face: what a user gets from ``import fedlsg``."""

import subprocess
import sys

import pytest

import fedlsg
from tests.places import REPOSITORY


@pytest.mark.parametrize("name", fedlsg.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(fedlsg, name)
    assert value.__doc__


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'decomposed'"):
        fedlsg.decomposed  # noqa: B018


def test_a_star_import_gives_the_public_names():
    code = "from fedlsg import *; print(sorted(n for n in globals() if n[0] != '_' or n == '__version__'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert eval(done.stdout) == sorted(fedlsg.__all__)
