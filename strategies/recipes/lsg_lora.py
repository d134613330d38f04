"""LSG on LoRA: sparse private updates of LoRA's factors (Ito et al. 2024, "Ours (LoRA)").

Differs from the paper: one joint clip over all blocks, as for ``lsg``; classifier, biases and norm
scales stay dense.
"""

from fedlsg.carriers import Lora, LoraAlpha, Rank, TrainEmbeddings
from fedlsg.masks import Direction, Mask, Sparsity
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 8,
    sparsity: Sparsity = 0.3,
    lora_alpha: LoraAlpha = None,
    train_embeddings: TrainEmbeddings = False,
    direction: Direction = "top",
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Rows of dB and columns of dA whose unit of W_0 + s B A is important; ``sparsity=0`` is
    ``lora``.
    """
    return Method(
        name="lsg-lora",
        carrier=Lora(rank=rank, alpha=lora_alpha, embeddings=train_embeddings),
        mask=Mask(kind="units", sparsity=sparsity, direction=direction),
        mechanism=mechanism,
        server=server,
    )
