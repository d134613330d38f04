"""LoRA under DP-SGD: the factors of a low-rank update are trained, W is frozen (Hu et al. 2022; Yu
et al. 2022).
"""

from fedlsg.carriers import Lora, LoraAlpha, Rank, TrainEmbeddings
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 8,
    lora_alpha: LoraAlpha = None,
    train_embeddings: TrainEmbeddings = False,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Two factors next to every weight that carriers of this rank would carry; the server averages
    and steps them.

    ``lora_alpha``: the product is scaled by alpha / rank, by 1 where it is None. Classifier, biases
    and norm scales stay dense, as for every carrier method. Averaged are the factors: after several
    local steps of a round the server's product is not the average of the clients' products
    (``ffa-lora``'s is).
    """
    carrier = Lora(rank=rank, alpha=lora_alpha, embeddings=train_embeddings)
    return Method(name="lora", carrier=carrier, mechanism=mechanism, server=server)
