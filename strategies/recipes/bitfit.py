"""BitFit: only bias terms and the classifier are trained (Ben Zaken et al. 2022; private:
DP-BiTFiT, Bu et al. 2022).

A layer's bias gradient is a sum of the gradients at its output: no input is remembered, and no
gradient of a frozen weight is formed. Differs from the sources: their fine-tuning of a pretrained
model becomes federated; the biases of norm layers are trained, too, as theirs are; their ghost
clipping is not needed, for a bias's own gradients are small.
"""

from fedlsg.carriers import Dense
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(*, mechanism: Mechanism, server: ServerOptimizer) -> Method:
    """Everything frozen but biases and classifier, which are dense. A model without biases is
    refused.
    """
    return Method(name="bitfit", carrier=Dense(train="biases"), mechanism=mechanism, server=server)
