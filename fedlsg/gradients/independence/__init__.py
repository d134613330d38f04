"""Whether a model treats the examples of a batch independently: public probe inputs, each alone and with others."""

from fedlsg.gradients.independence.check import check_independent

__all__ = ["check_independent"]
