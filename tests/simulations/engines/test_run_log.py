"""What goes into run.log: the message as text, whatever colours its writer gave it."""

import logging

import pytest

from simulations.engines.run_log import LOGGER, logging_to


@pytest.mark.parametrize("coloured", ["\x1b[36m(pid=1)\x1b[0m failed", "(pid=1) \x1b[1;31mfailed\x1b[0m"])
def test_no_colour_codes(coloured, tmp_path):
    with logging_to(tmp_path / "run.log"):
        logging.getLogger(LOGGER).warning("%s", coloured)
    (line,) = (tmp_path / "run.log").read_text().splitlines()
    assert line.endswith(" WARNING (pid=1) failed")
