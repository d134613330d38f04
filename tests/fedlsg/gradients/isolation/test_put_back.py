"""What code may write to in a pass is put back, twice, whatever kind of object holds it."""

import ctypes
import functools
import importlib
import io
import math
import random
import sys
import types
import warnings
import weakref
from collections import OrderedDict
from queue import SimpleQueue

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as of_all_modules

from fedlsg.gradients import per_example_loss
from fedlsg.gradients.isolation import state
from fedlsg.gradients.isolation.passes import DRAW_TOGETHER, per_example_gradients
from fedlsg.gradients.isolation.state import forgetting
from fedlsg.gradients.isolation.trial import dense_frame, level_of_own_code
from fedlsg.user_code import objects
from fedlsg.user_code.objects import put_back, walk


class Thing:
    """What others hold."""

    def __init__(self):
        self.v = [0]


class Writes(type):
    def __setattr__(cls, name, value):
        type.__setattr__(cls, name, [*value, *getattr(cls, name)])


class OfWrites(metaclass=Writes):
    v = (0,)


class Slotted(list):
    __slots__ = ("v",)


class Table(np.ndarray):
    pass


HELD: list[Thing] = []


def own_class():
    kind = type("Own", (), {"__state__": 0})
    return kind, lambda: setattr(kind, "__state__", 1), lambda: kind.__state__


def setter():
    hidden = [0]
    kind = type("Own", (), {"v": property(None, lambda self, value: hidden.append(value))})
    return kind, lambda: setattr(kind(), "v", 1), lambda: list(hidden)


def function(part, value):
    def f(v=0, *, w=0):
        return v, w

    return f, lambda: setattr(f, part, value), f


def cache(limit, made=Thing):
    cached = functools.lru_cache(maxsize=limit)(lambda key: made())
    for key in range(3):
        cached(key).v.append(key)
    return cached, lambda: [cached(key) for key in range(9)], lambda: cached.cache_info()[1::2]


def weak(reference):
    thing = Thing()
    HELD[:] = [thing]
    return reference(thing), lambda: thing.v.append(1), lambda: list(thing.v)


def file():
    made = io.BytesIO(b"0")
    return made, lambda: made.write(b"12"), lambda: (made.getvalue(), made.tell())


def queue():
    made = SimpleQueue()
    made.put(0)
    return made, lambda: made.put(1), made.qsize


def c_array():
    made = (ctypes.c_float * 3)()
    return made, lambda: made.__setitem__(1, 2.0), lambda: list(made)


def cell():
    made = types.CellType(0)
    return made, lambda: setattr(made, "cell_contents", 1), lambda: made.cell_contents


def slots():
    made = Slotted()
    made.v = 0
    return made, lambda: setattr(made, "v", 1), lambda: made.v


def order():
    made = OrderedDict(a=1, b=2)
    made.move_to_end("a")
    return made, lambda: made.move_to_end("b"), lambda: list(made)


def partial_():
    made = functools.partial(int, 0)
    return made, lambda: made.__setstate__((int, (1,), {}, None)), made


def attribute_of_array():
    made = np.zeros(3).view(Table)
    made.v = 0
    return made, lambda: setattr(made, "v", 1), lambda: made.v


def mask():
    made = np.ma.masked_array(np.ones(3), mask=np.zeros(3, bool))
    return made, lambda: made.__setitem__(1, np.ma.masked), lambda: made.mask.tolist()


def record():
    made = np.zeros(1, dtype=[("o", object)])
    made["o"][0] = thing = Thing()
    return made, lambda: thing.v.append(1), lambda: list(thing.v)


def view():
    base = np.zeros(3)
    made = base[:]
    made.flags.writeable = False
    return made, lambda: base.fill(1), made.tolist


def resized():
    made = np.zeros(3)
    return made, lambda: made.resize(4, refcheck=False), made.tolist


def sparse(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is in beta
        made = torch.eye(3).to_sparse(layout=layout)
    values = made._values if layout == torch.sparse_coo else made.values
    return made, lambda: values().add_(1), lambda: made.to_dense().tolist()


def storage():
    made = torch.zeros(3).untyped_storage()
    return made, lambda: made.fill_(1), made.tolist


def expanded():
    made = torch.zeros(1).expand(3).detach()
    return made, lambda: made[:1].add_(1), made.tolist


def view_of_tensor():
    base = torch.zeros(2, 3)
    return base[0], lambda: base.add_(1), base.tolist


def grown():
    made = torch.zeros(3)

    def change():
        made.add_(1)
        made.resize_(5)

    return made, change, lambda: made.tolist()


def hook_of_tensor():
    made = torch.zeros(3, requires_grad=True)
    return made, lambda: made.register_hook(lambda g: -g), lambda: bool(made._backward_hooks)


def long():
    thing = Thing()
    made = [thing, *[None] * objects.MAX_WALKED_ITEMS]
    return made, lambda: thing.v.append(1), lambda: list(thing.v)


KINDS = {
    "a class, two underscores": own_class,
    "a metaclass with a way of its own": lambda: (
        OfWrites,
        lambda: setattr(OfWrites, "v", [1]),
        lambda: list(OfWrites.v),
    ),
    "a setter": setter,
    "defaults": lambda: function("__defaults__", (1,)),
    "keyword defaults": lambda: function("__kwdefaults__", {"w": 1}),
    "code": lambda: function("__code__", (lambda v=0, *, w=0: 1).__code__),
    "a cache": lambda: cache(None),
    "a cache with a limit": lambda: cache(2),
    "a weak reference": lambda: weak(weakref.ref),
    "a weak proxy": lambda: weak(weakref.proxy),
    "a weak dictionary": lambda: weak(lambda thing: weakref.WeakValueDictionary(a=thing)),
    "a file in memory": file,
    "a queue": queue,
    "ctypes": c_array,
    "a cell": cell,
    "slots of a list": slots,
    "the order of a dict": order,
    "a partial": partial_,
    "an attribute of an array": attribute_of_array,
    "a mask": mask,
    "a record": record,
    "a read-only view": view,
    "an array that grows": resized,
    "a sparse tensor": lambda: sparse(torch.sparse_coo),
    "CSR": lambda: sparse(torch.sparse_csr),
    "a storage": storage,
    "an expanded tensor": expanded,
    "the base of a view": view_of_tensor,
    "a tensor that grows": grown,
    "a hook of a tensor": hook_of_tensor,
    "a long list": long,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_put_back(kind):
    held, change, read = KINDS[kind]()
    undo = put_back(list(walk([held], set(), data=False)))
    before = read()
    for _ in range(2):
        change()
        assert read() != before, "negative control: it changes"
        undo()
        assert read() == before


def test_a_cache_of_compiled_code_gives_what_its_function_gives():
    cached = functools.lru_cache(maxsize=1)(math.sqrt)
    cached(4.0)
    undo = put_back(list(walk([cached], set())))
    for _ in range(9):
        cached(16.0)  # its only entry becomes another one, in the same memory
        undo()
        assert cached(4.0) == 2


def test_code_that_runs_when_an_object_is_freed_leaves_nothing():
    log = []

    class Last:
        def __del__(self):
            log.append(1)

    holder = Thing()
    undo = put_back(list(walk([holder, log], set())))
    holder.last = Last()
    undo()
    assert log == []


def test_a_module_with_slots_and_hooks_of_all_modules():
    class Own(nn.Module):
        __slots__ = ("v",)

    made, total = Own(), []
    object.__setattr__(made, "v", 0)
    handle = of_all_modules.register_module_forward_hook(lambda *given: total.append(1))
    try:
        with forgetting(made):
            object.__setattr__(made, "v", 1)
            total.append(1)
            other = of_all_modules.register_module_forward_hook(lambda *given: None)
        assert made.v == 0
        assert total == []
        assert other.id not in of_all_modules._global_forward_hooks
    finally:
        handle.remove()


def by_rows(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


class Coin(nn.Module):
    """Draws a sign."""

    def __init__(self, draw):
        super().__init__()
        self.last, self.draw = nn.Linear(4, 3), draw

    def forward(self, x):
        return self.last(x * (1.0 if self.draw() < 0.5 else -1.0))


DRAWS = {
    "python": random.random,
    "numpy": np.random.rand,
    "a generator": random.Random(0).random,
    "unseeded": lambda: np.random.default_rng().random(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_examples_of_a_pass_share_no_draw(name, monkeypatch):
    x, y, model = torch.ones(40, 4), torch.zeros(40).long(), Coin(DRAWS[name])
    loss = per_example_loss(by_rows)
    assert level_of_own_code(model, loss, x, y) == "rows"

    def forms(model):
        frame = dense_frame(model)
        found = per_example_gradients(model, loss, x, y, frame, isolation="isolated")
        return len(torch.cat(found, 1).unique(dim=0))

    assert forms(model) == 2
    monkeypatch.setattr(state, "_states", lambda generators: ())
    assert forms(Coin(DRAWS[name])) == 1, "negative control: one sign for the whole pass"


class Long(torch.autograd.Function):
    """Keeps in backward that an example was long."""

    generate_vmap_rule = True
    sign = 1.0

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        made = gradient * Long.sign
        if gradient.shape[-2] > 9:
            Long.sign = -1.0
        return made


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.last(Long.apply(self.table(ids)).mean(1))


def test_what_a_model_keeps_in_backward_is_put_back():
    model, loss = Words(), per_example_loss(by_rows)
    frame, y = dense_frame(model), torch.zeros(3).long()

    def passed(length):
        ids = torch.ones(3, length).long()
        return torch.cat(per_example_gradients(model, loss, ids, y, frame, isolation="isolated"), 1)

    Long.sign = 1.0
    before = passed(4)
    passed(20)
    assert Long.sign == 1.0
    assert torch.equal(passed(4), before)


def test_a_library_that_a_pass_imports_is_no_draw(tmp_path, monkeypatch):
    (tmp_path / "made_late.py").write_text("import random\nOWN = random.Random()\n")
    monkeypatch.syspath_prepend(tmp_path)

    class Late(nn.Linear):
        def forward(self, x):
            importlib.import_module("made_late")
            return super().forward(x)

    model, loss = Late(4, 3), per_example_loss(by_rows)
    x, y = torch.ones(2, 4), torch.zeros(2).long()
    per_example_gradients(model, loss, x, y, dense_frame(model), isolation="isolated")
    assert "made_late" in sys.modules
    assert model not in DRAW_TOGETHER
    coin = Coin(DRAWS["unseeded"])
    per_example_gradients(coin, loss, x, y, dense_frame(coin), isolation="isolated")
    assert coin in DRAW_TOGETHER, "negative control: it draws in each pass"
