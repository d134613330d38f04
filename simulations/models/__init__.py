"""Models by image shape, and the helpers that fill them with pre-trained weights.

``vision`` lists the models for images of one shape. Every model is made of layers with per-example gradients, has no
in-place operation and no layer that mixes examples, and names its output layer ``classifier``.
Build them through ``simulations.workloads.build_model``, which makes their initial weights public and repeatable.
"""

from simulations.models.pretrained import load_pretrained, with_pretrained
from simulations.models.registry import vision
from simulations.models.small import digits_conv, digits_mlp

__all__ = ["digits_conv", "digits_mlp", "load_pretrained", "vision", "with_pretrained"]
