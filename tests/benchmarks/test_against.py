"""Two checkouts in turns: this one against itself, and one that cannot start."""

import pytest

from benchmarks.against import HERE, compare


@pytest.mark.slow
def test_a_checkout_against_itself():
    found = compare(HERE, "encoder-6x384", "lsg p=0", batch=2, pairs=2)
    assert set(found["median"]) == {"before", "now"}
    assert 0.2 < found["before / now"]["median"] < 5


@pytest.mark.slow
def test_a_folder_without_the_package_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match=r"ended; its error is printed above"):
        compare(tmp_path, "encoder-6x384", "lsg p=0", batch=2, pairs=1)
