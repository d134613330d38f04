"""pandas, of the extra "plots": means over seeds, pairing and CSV of comparisons."""

from fedlsg.extras import of_extra

with of_extra("plots", "comparisons, reports and exports"):
    import pandas as pd

__all__ = ["pd"]
