"""Check that a model and a loss treat the examples of a batch independently, on public rows."""

from fedlsg.gradients.independence.check import check_model

__all__ = ["check_model"]
