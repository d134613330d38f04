"""Lines about a run's layers: the share of a pass' time that torch.func takes, on public rows; frozen embeddings."""

import time

from fedlsg.carriers import Lora, embeddings_of
from fedlsg.gradients import per_example_gradients
from fedlsg.gradients.calls import kind_of
from fedlsg.gradients.calls.torch_func import measure
from fedlsg.gradients.calls.ways import ways_of
from simulations.plan.plan import Plan, probes
from simulations.workloads import to_device


def embeddings_line(plan: Plan) -> str | None:
    """One sentence about embeddings that LoRA freezes; None where it freezes none."""
    carrier = plan.method.carrier
    if not isinstance(carrier, Lora) or carrier.embeddings:
        return None
    tables = {id(p): p.numel() for p in embeddings_of(plan.build_model())}
    if not tables:
        return None
    asked = "; train_embeddings=true trains them" if carrier.train == "all" else ""
    return f"embeddings are frozen under LoRA: {sum(tables.values()):,} values{asked}"


def torch_func_line(plan: Plan) -> str | None:
    """One sentence that names the layers whose gradients torch.func computes, and their share; None without any."""
    model = plan.build_model()
    modules = {path: model.get_submodule(path) for path in ways_of(model).calls}
    slow = [path for path, m in modules.items() if (kind := kind_of(m)) is not None and kind.by_torch_func]
    if not slow or not plan.method.mechanism.clips:
        return None
    inputs, targets = plan.workload.test.batch(probes(plan.workload.test))
    given = to_device(inputs, plan.device), targets.to(plan.device)
    frame = plan.public_state().frame(1, updates=0)
    for _ in range(2):  # the first pass prepares kernels
        start = time.perf_counter()
        with measure() as spent:
            per_example_gradients(model, plan.workload.loss, *given, frame)
        share = sum(spent) / (time.perf_counter() - start)
    rows = f"{len(targets)} public rows (fedlsg docs layers)"
    return f"torch.func computes the gradients of {', '.join(slow)}: {share:.0%} of a pass over {rows}"
