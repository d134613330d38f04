"""The papers' table rows as named presets (``Published``), one module a paper.

    settings = from_mapping(resolve({"preset": "lsg-cifar10-eps3.3", "seed": 1}))

A preset is a mapping of settings; the user's own settings override it. Importing this package imports no torch.
"""

from simulations.settings.published.preset import Published
from simulations.settings.published.resolve import (
    find,
    first_look,
    from_run_config,
    matching,
    presets,
    resolve,
    unfolded,
)

__all__ = ["Published", "find", "first_look", "from_run_config", "matching", "presets", "resolve", "unfolded"]
