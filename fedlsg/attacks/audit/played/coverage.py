"""Which shipped code an audit ran, counted while it ran; and what a run may take in addition.

A path is a function that clips, draws, adds noise or sums on the way from gradients to an output.
``sys.setprofile`` reports each call of its code: nothing is added to the functions themselves, and
a function that a planted mistake replaces does not count.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import CodeType, FrameType
from typing import Any

from fedlsg.attacks.audit.played.injection import ghost_layers
from fedlsg.attacks.audit.played.outputs import can_pass
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.frame import Frame
from fedlsg.gradients import GhostGradients, per_example
from fedlsg.noise import gaussian
from fedlsg.privacy import ShuffledBatches, clip, sampling
from fedlsg.randomness import public_generator
from fedlsg.secure_sum.client_attempt import Client
from fedlsg.secure_sum.discrete import grid
from fedlsg.state import RoundPlan
from fedlsg.training import client_level, client_round, one_pass


@dataclass(frozen=True, kw_only=True)
class Path:
    """``code``: of the function that is the path. ``possible``: whether a run of a setting may take
    it.
    """

    name: str
    code: CodeType
    possible: Callable[[AuditSetting], bool]


def ghosts(setting: AuditSetting) -> bool:
    """Whether the step may use ghost clipping."""
    return bool(ghost_layers(setting, public_generator(0), 1))


def of_examples(setting: AuditSetting) -> bool:
    """Whether clients clip single examples."""
    return not setting.stated.whole and not setting.unit.persons


def path(name: str, function: Any, possible: Callable[[AuditSetting], bool]) -> Path:
    """The path of a function or method."""
    return Path(name=name, code=function.__code__, possible=possible)


def device(setting: AuditSetting) -> str:
    """The kind of device that the steps are on."""
    return next(setting.model.parameters()).device.type


PATHS = (
    path("backward pass of each example", per_example.run, lambda s: not s.stated.whole),
    path("local training of whole updates", client_round.plain_steps, lambda s: s.stated.whole),
    path("Poisson batch", sampling.poisson_batch, lambda s: s.stated.sample_rate < 1),
    path("shuffled batch", ShuffledBatches.next_batch, lambda s: s.shuffled),
    path("clip and sum", clip.clipped_sum, lambda s: True),
    path("clip of ghost gradients", GhostGradients.norms, ghosts),
    path("sum of ghost gradients", GhostGradients.weighted_sum, ghosts),
    path("shared pass", one_pass.sums_in_one_pass, can_pass),
    path("clip and sums of a shared pass", clip.clipped_sums, can_pass),
    path("equal slots of a shared pass", clip._sums_of_slots, can_pass),
    path("clip of persons", client_round._sum_of_persons, lambda s: s.unit.persons),
    path(
        "copies of an example",
        client_round.mean_of_copies,
        lambda s: of_examples(s) and s.local.multiplicity > 1,
    ),
    path("several local steps", Frame.add_to, lambda s: len(s.weights) > 1),
    path("pruning by saliencies", RoundPlan.scale, lambda s: s.prunes),
    path("clip of whole updates", client_level.clipped_update, lambda s: s.stated.whole),
    path(
        "noise of a client's update",
        client_level.client_update,
        lambda s: s.stated.whole and s.sums is not None,
    ),
    path("release of a trusted server", client_level.release_round, lambda s: s.unit.at_server),
    path(
        "noisy count of an adaptive clip",
        client_level.AdaptiveClip.next_norm,
        lambda s: s.adaptive is not None,
    ),
    path("Gaussian noise", gaussian.add_gaussian, lambda s: s.sums is None),
    path("noise on a device", gaussian._on_device, lambda s: s.sums is None and device(s) != "cpu"),
    path("discrete noise", grid.encode, lambda s: s.sums is not None),
    path("sum modulo 2^b", grid.add_modulo, lambda s: s.sums is not None),
    path("masks and keys of a secure sum", Client._make_masked, lambda s: s.sums is not None),
)
"""All paths, in the order of a round."""


COUNTED_OUTPUTS = 8
"""Outputs of which one is counted: a profiler takes time."""


@contextmanager
def count_paths() -> Iterator[tuple[Counter[str], Callable[[], None]]]:
    """How often each path runs inside, by name, in this thread; and a function to call after each
    output, which switches the profiler: it sees one output of COUNTED_OUTPUTS. A profiler that was
    there goes on afterwards.
    """
    calls: Counter[str] = Counter()
    names = {path.code: path.name for path in PATHS}
    outputs = count(1)

    def seen(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]] += 1

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield calls, lambda: sys.setprofile(before if next(outputs) % COUNTED_OUTPUTS else seen)
    finally:
        sys.setprofile(before)


def not_covered(setting: AuditSetting, counts: Counter[str]) -> tuple[str, ...]:
    """The paths that a run of the setting may take, and that did not run."""
    return tuple(p.name for p in PATHS if p.possible(setting) and not counts[p.name])
