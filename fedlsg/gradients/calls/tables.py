"""Which embeddings are read by positions and not by the batch: a run over one example says it.

Row numbers (T,) of positions and (B,) of the batch look alike where T = B. With one example the second have length 1.
Mistaking one for the other would give each position of one example a row of its own in the clip.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedlsg.gradients.calls.ways import Ways

_known: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()


def tables_of(model: nn.Module, ways: Ways, inputs: Iterable[Tensor], run: Callable[[], Any]) -> frozenset[str]:
    """Paths of the embeddings that are read without the batch. ``run`` calls the model on one example, ``inputs``.

    The answer is kept for a model. It is asked again where the row numbers of the one example do not decide it.
    """
    paths = [path for path in ways.calls if type(model.get_submodule(path)) is nn.Embedding]
    if not paths or model in _known:
        return _known.get(model, frozenset())
    memory = {t.untyped_storage().data_ptr() for t in inputs}
    found: set[str] = set()
    unclear: set[str] = set()

    def note(path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        ids = args[0] if args else kwargs["input"]
        if ids.ndim == 0 or len(ids) != 1:
            found.add(path)
        elif ids.numel() == 1 and ids.untyped_storage().data_ptr() not in memory:
            unclear.add(path)

    hooks = [
        model.get_submodule(path).register_forward_pre_hook(partial(note, path), with_kwargs=True) for path in paths
    ]
    try:
        with torch.random.fork_rng(enabled=True), torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    if not unclear:
        _known[model] = frozenset(found)
    return frozenset(found)
