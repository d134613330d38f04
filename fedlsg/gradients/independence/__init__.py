"""Check that a model treats the examples of a batch independently, on public probe inputs."""

from fedlsg.gradients.independence.cast import check_cast
from fedlsg.gradients.independence.check import check_independent

__all__ = ["check_cast", "check_independent"]
