"""frame.json and frame.npz of a recorded round: the same frame comes back, or the file is named."""

import numpy as np

from simulations.rundir.updates import read_frame, round_folder


def test_the_frame_comes_back_bit_for_bit(small):
    frame, about = read_frame(round_folder(small.path, 1))
    assert about["digest"] == frame.digest.hex()
    assert (round_folder(small.path, 1) / "client-000000.bin").read_bytes()[32:64] == frame.digest
    offsets = [block["offset"] for block in about["blocks"]]
    assert [b["part"] for b in about["blocks"]][:3] == ["L", "R", "dense"]
    assert offsets == [0, *np.cumsum([block["size"] for block in about["blocks"]])[:-1]]
