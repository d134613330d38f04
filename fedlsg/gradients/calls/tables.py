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

_known: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether an embedding is read without the batch, where one example has decided it."""


def tables_of(model: nn.Module, ways: Ways, inputs: Iterable[Tensor], run: Callable[[], Any]) -> frozenset[str]:
    """Paths of the embeddings that are read without the batch. ``run`` calls the model on one example, ``inputs``.

    The answer is kept for each embedding. It is asked again where the row numbers of one example do not decide it.
    """
    modules = {path: model.get_submodule(path) for path in ways.calls}
    modules = {path: module for path, module in modules.items() if type(module) is nn.Embedding}
    found = {path: known for path, module in modules.items() if (known := _known.get(module)) is not None}
    if len(found) < len(modules):
        memory = {t.untyped_storage().data_ptr() for t in inputs}

        def note(path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
            ids = args[0] if args else kwargs["input"]
            found[path] = ids.ndim == 0 or len(ids) != 1
            if ids.numel() > 1 or ids.untyped_storage().data_ptr() in memory:
                _known[module] = found[path]

        hooks = [m.register_forward_pre_hook(partial(note, path), with_kwargs=True) for path, m in modules.items()]
        devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
        try:
            with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
                run()
        finally:
            for hook in hooks:
                hook.remove()
    return frozenset(path for path, without_batch in found.items() if without_batch)
