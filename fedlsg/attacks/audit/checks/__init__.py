"""Checks of what an audit recorded.

check           a check and its outcome; what is claimed of a unit
all_checks      all checks of what the unit mode recorded
unit_checks     how far units move the outputs, and how they are drawn
noise_checks    the noise of outputs that hold nothing else
count_checks    the noisy count of an adaptive clip
movement_bound  the bound on how far units move an output
"""
