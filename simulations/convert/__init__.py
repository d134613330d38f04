"""``fedlsg convert``: weights that others trained, as a folder that a run starts from.

read_arrays (pickles, .npz, Orbax folders, state dicts) -> layouts (whose names these are) -> model.safetensors
"""
