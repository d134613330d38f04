"""Mistakes that can be planted in the mechanism, to see whether an audit finds them.

Inside ``planted(name)`` one mistake is made: functions that a real run calls are replaced, so that
its outputs are not what is claimed. The audit does not know it. For simulations and tests; nothing
in a real run calls this.

A mistake is a dict of replacing functions by name, ``Patches``. The docstrings of the functions
below say what each mistake is. ``PLANTS`` has all mistakes by name, and ``refuse_plant`` refuses
those that a setting cannot have.
Symbols: C clip norm, q sampling rate.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fedlsg.attacks.audit.played.injection import ghost_layers
from fedlsg.attacks.audit.played.outputs import can_pass
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.config.mechanisms import gaussian
from fedlsg.gradients import GhostGradients
from fedlsg.privacy import Mechanism, add_noise, clipped_sum, poisson_batch
from fedlsg.privacy.clip import clipped_sums
from fedlsg.privacy.mechanism import LARGEST_CLIP_NORM
from fedlsg.randomness import SecretStream, public_generator
from fedlsg.secure_sum.discrete import SumTerms, discrete_gaussian, plan_release, rotate

Patches = dict[str, Callable[..., Any]]
"""The functions of a mistake, by the names of those that they replace."""
AddNoise = Callable[[Tensor, Any, SecretStream], Tensor]
"""(values, mechanism or deviation, stream of random numbers) -> the values with noise."""
Bare = Callable[[Tensor], Tensor]
"""values -> the same in the form of ``AddNoise``'s result, without noise."""
HOMES = {
    "add_noise": ("fedlsg.training.client_round", "fedlsg.training.client_level"),
    "discrete_gaussian": ("fedlsg.secure_sum.discrete.grid",),
    "clipped_sum": ("fedlsg.training.client_round", "fedlsg.training.client_level"),
    "poisson_batch": ("fedlsg.training.client_round", "fedlsg.attacks.audit.played.outputs"),
    "plan_release": ("fedlsg.attacks.audit.played.outputs",),
    "rotate": ("fedlsg.secure_sum.discrete.sum_release",),
    "gaussian": ("fedlsg.training.client_level",),
    "clipped_sums": ("fedlsg.training.one_pass",),
    "norms": ("fedlsg.gradients.formulas.ghost.GhostGradients",),
    "weighted_sum": ("fedlsg.gradients.formulas.ghost.GhostGradients",),
}
"""The modules and classes in which a real run looks each function up."""


def in_noise(change: Callable[[AddNoise, Bare], AddNoise]) -> Patches:
    """One mistake in both kinds of noise, continuous and discrete.

    change: makes the replacing function, from the one that adds noise and the one that does not.
    """
    return {
        "add_noise": change(add_noise, lambda total: total),
        "discrete_gaussian": change(discrete_gaussian, lambda centres: centres.round().long()),
    }


def scaled_noise(factor: Fraction) -> Patches:
    """Noise of another deviation than the claimed one."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        return total + add_noise(torch.zeros_like(total), mechanism, noise) * float(factor)

    def discrete(centres: Tensor, deviation: Fraction, noise: SecretStream) -> Tensor:
        return discrete_gaussian(centres, max(deviation * factor, Fraction(1, 4)), noise)

    return {"add_noise": plant, "discrete_gaussian": discrete}


def per_block_clip() -> Patches:
    """Every block clipped to C on its own, claimed as if the whole were.

    As taken literally from Ito et al. 2023, Alg. 1.
    """

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, **options: bool) -> Tensor:
        return clipped_sum(gradients, replace(mechanism, clip="per-block"), **options)

    return {"clipped_sum": plant}


def no_clip() -> Patches:
    """Gradients summed as they are."""

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, *, wide: bool = False) -> Tensor:
        total = torch.cat([block.sum(0).flatten() for block in gradients])
        return total.to(torch.float64 if wide else None)

    return {"clipped_sum": plant}


def clip_misses_block() -> Patches:
    """The last block is added as it is, and is not in the norm that is clipped."""

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, **options: bool) -> Tensor:
        *rest, last = gradients
        clipped = clipped_sum(rest, mechanism, **options)
        return torch.cat([clipped, last.sum(0).flatten().to(clipped)])

    return {"clipped_sum": plant}


def rotation_doubles() -> Patches:
    """The rotation of a secure sum's values makes them twice as long."""
    return {"rotate": lambda values, signs: 2 * rotate(values, signs)}


def shares_for(honest_clients: Callable[[SumTerms], int]) -> Patches:
    """Each client's share of the noise is planned for a wrong number of honest clients."""

    def plant(terms: SumTerms, mechanism: Mechanism, **sizes: int) -> Any:
        honest = honest_clients(terms)
        # min_survivors - colluders = honest, and a plan needs at least one colluder
        clients = max(terms.clients, honest + 1)
        wrong = replace(terms, clients=clients, min_survivors=honest + 1, colluders=1)
        return plan_release(
            wrong, replace(mechanism, noise_share=honest**-0.5, colluders=1), **sizes
        )

    return {"plan_release": plant}


def mask_unlike_noise() -> Patches:
    """Noise on the coordinates of another mask: a tenth of those that are sent have none."""

    def change(add: AddNoise, bare: Bare) -> AddNoise:
        def plant(values: Tensor, scale: Any, noise: SecretStream) -> Tensor:
            mask = torch.rand(len(values), generator=torch.Generator().manual_seed(1)) < 0.9
            return torch.where(mask.to(values.device), add(values, scale, noise), bare(values))

        return plant

    return in_noise(change)


def noise_reused() -> Patches:
    """One draw of the noise for all steps of all clients."""

    def change(add: AddNoise, bare: Bare) -> AddNoise:
        draws: dict[int, Tensor] = {}

        def plant(values: Tensor, scale: Any, noise: SecretStream) -> Tensor:
            if len(values) not in draws:
                draws[len(values)] = add(torch.zeros_like(values), scale, noise)
            return bare(values) + draws[len(values)]

        return plant

    return in_noise(change)


def noise_left_out(clients: int) -> Patches:
    """One of the clients of a sum adds no noise.

    Where outputs are of single clients, every second output has none.
    """

    def change(add: AddNoise, bare: Bare) -> AddNoise:
        calls = count(1)

        def plant(values: Tensor, scale: Any, noise: SecretStream) -> Tensor:
            return bare(values) if next(calls) % max(clients, 2) == 1 else add(values, scale, noise)

        return plant

    return in_noise(change)


def by_batch_size(change: Callable[[Tensor, Tensor, int], Tensor]) -> Patches:
    """An output that depends on the number of sampled units.

    change: gives the output, from the sum, the sum with noise and that number.
    """
    size = 0

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        return change(total, add_noise(total, mechanism, noise), size)

    def draw(count: int, sample_rate: float, sampler: SecretStream) -> Tensor:
        nonlocal size
        batch = poisson_batch(count, sample_rate, sampler)
        size = len(batch)
        return batch

    return {"add_noise": plant, "poisson_batch": draw}


def full_batches() -> Patches:
    """Every example, or client, in every step, accounted as a Poisson sample."""
    return {"poisson_batch": lambda count, sample_rate, sampler: torch.arange(count)}


def clip_factors(change: Callable[[Tensor, float], Tensor]) -> Patches:
    """Other factors than those of the clip.

    change: gives the factors, from the norms of a batch and C.
    """

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, *, wide: bool = False) -> Tensor:
        rows = torch.cat([block.flatten(1) for block in gradients], 1)
        factors = change(rows.norm(dim=1).clamp_min(1e-30), mechanism.clip_norm)
        return (factors.to(rows) @ rows).to(torch.float64 if wide else None)

    return {"clipped_sum": plant}


def part_doubled() -> Patches:
    """The last eighth of the coordinates counts twice, after the clip."""

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, **options: bool) -> Tensor:
        total = clipped_sum(gradients, mechanism, **options)
        total[-(len(total) // 8) :] *= 2
        return total

    return {"clipped_sum": plant}


def rotated_part_doubled() -> Patches:
    """An eighth of the coordinates of a secure sum counts twice, after the rotation."""

    def plant(values: Tensor, signs: Tensor) -> Tensor:
        rotated = rotate(values, signs).clone()
        rotated[: len(rotated) // 8] *= 2
        return rotated

    return {"rotate": plant}


def batches(change: Callable[[Tensor, int, float], Tensor]) -> Patches:
    """Another batch than the sampled one.

    change: gives the batch, from the sampled one, the number of units and q.
    """

    def plant(count: int, sample_rate: float, sampler: SecretStream) -> Tensor:
        return change(poisson_batch(count, sample_rate, sampler), count, sample_rate)

    return {"poisson_batch": plant}


def batch_reused() -> Patches:
    """The first batch is that of all rounds, for each number of units and rate."""
    first: dict[tuple[int, float], Tensor] = {}
    return batches(lambda batch, count, q: first.setdefault((count, q), batch))


def batches_in_order() -> Patches:
    """Batches of fixed size, one after the other through the data, accounted as Poisson batches."""
    turns = count()

    def change(batch: Tensor, examples: int, q: float) -> Tensor:
        size = round(q * examples)
        return (torch.arange(size) + next(turns) * size) % max(examples, 1)

    return batches(change)


def noise_twice(clients: int) -> Patches:
    """Each draw of a client is used in two outputs, one after the other."""

    def change(add: AddNoise, bare: Bare) -> AddNoise:
        unused: dict[tuple[int, int], Tensor] = {}
        calls = count()

        def plant(values: Tensor, scale: Any, noise: SecretStream) -> Tensor:
            # A draw for each client of an output: the same noise twice in one output would add up.
            client = (next(calls) % clients, len(values))
            draw = unused.pop(client, None)
            if draw is None:
                draw = unused[client] = add(torch.zeros_like(values), scale, noise)
            return bare(values) + draw

        return plant

    return in_noise(change)


def noise_in_16_bits() -> Patches:
    """Noise of 16 bits, added to a sum of 32 bits: the last digits of an output are the sum's."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        return total + add_noise(torch.zeros_like(total), mechanism, noise).half().to(total)

    return {"add_noise": plant}


def noise_clamped() -> Patches:
    """Noise that ends at three deviations: an output beyond them shows that a unit took part."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        draw = add_noise(torch.zeros_like(total), mechanism, noise)
        most = 3 * draw.std(correction=0)
        return total + draw.clamp(-most, most)

    return {"add_noise": plant}


def noise_permuted() -> Patches:
    """The second half of the noise is the first half in another order.

    Differences of pairs of coordinates then have no noise.
    """

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        draw = add_noise(torch.zeros_like(total), mechanism, noise)
        half = len(draw) // 2
        order = torch.randperm(half, generator=torch.Generator().manual_seed(half))
        draw[-half:] = draw[:half][order.to(draw.device)]
        return total + draw

    return {"add_noise": plant}


def last_row_twice() -> Patches:
    """The last row of each batch counts twice."""

    def plant(gradients: Sequence[Tensor], mechanism: Mechanism, **options: bool) -> Tensor:
        total = clipped_sum(gradients, mechanism, **options)
        return total + clipped_sum([block[-1:] for block in gradients], mechanism, **options)

    return {"clipped_sum": plant}


def rounded_before_noise() -> Patches:
    """The sum is rounded to steps of C / 4, away from zero, and gets the noise of the sum."""

    def plant(total: Tensor, mechanism: Mechanism, noise: SecretStream) -> Tensor:
        step = mechanism.clip_norm / 4
        return add_noise(total.sign() * (total.abs() / step).ceil() * step, mechanism, noise)

    return {"add_noise": plant}


def no_clip_in_passes() -> Patches:
    """Clients that share a pass have their gradients summed as they are."""

    def plant(gradients: Any, mechanism: Mechanism, runs: Any, **slots: int) -> Any:
        return clipped_sums(
            gradients, replace(mechanism, clip_norm=LARGEST_CLIP_NORM), runs, **slots
        )

    return {"clipped_sums": plant}


def neighbour_in_pass() -> Patches:
    """The sum of a client holds that of its neighbour in a pass, too."""

    def plant(*arguments: Any, **slots: Any) -> Any:
        sums = clipped_sums(*arguments, **slots)
        return [own + sums[i - 1] for i, own in enumerate(sums)]

    return {"clipped_sums": plant}


ghost_norms, ghost_sum = GhostGradients.norms, GhostGradients.weighted_sum
PLANTS: dict[str, Callable[[int], Patches]] = {
    "halved-noise": lambda _: scaled_noise(Fraction(1, 2)),
    "tenth-of-noise": lambda _: scaled_noise(Fraction(1, 10)),
    "noise-left-out": noise_left_out,
    "shares-for-all": lambda _: shares_for(lambda terms: terms.clients),
    "readers-not-counted": lambda _: shares_for(lambda terms: terms.min_survivors),
    "rotation-doubles": lambda _: rotation_doubles(),
    "clip-misses-block": lambda _: clip_misses_block(),
    "per-block-clip": lambda _: per_block_clip(),
    "no-clip": lambda _: no_clip(),
    "mask-unlike-noise": lambda _: mask_unlike_noise(),
    "noise-reused": lambda _: noise_reused(),
    # no noise where the batch is empty: silence shows that no unit took part
    "empty-batch-skipped": lambda _: by_batch_size(
        lambda total, noisy, size: noisy if size else total
    ),
    "divisor-from-data": lambda _: by_batch_size(lambda total, noisy, size: noisy / max(1, size)),
    "full-batches": lambda _: full_batches(),
    "nine-tenths-of-noise": lambda _: scaled_noise(Fraction(9, 10)),
    "noise-twice": noise_twice,
    "noise-in-16-bits": lambda _: noise_in_16_bits(),
    "noise-clamped": lambda _: noise_clamped(),
    "noise-permuted": lambda _: noise_permuted(),
    "last-row-twice": lambda _: last_row_twice(),
    "rounded-before-noise": lambda _: rounded_before_noise(),
    "clip-from-2c-on": lambda _: clip_factors(
        lambda norms, c: torch.where(norms < 2 * c, 1.0, c / norms)
    ),
    "clip-by-mean-norm": lambda _: clip_factors(
        lambda norms, c: (c / norms.mean()).clamp(max=1).expand(len(norms))
    ),
    "part-doubled": lambda _: part_doubled(),
    "rotated-part-doubled": lambda _: rotated_part_doubled(),
    "batch-reused": lambda _: batch_reused(),
    "batches-in-order": lambda _: batches_in_order(),
    "doubled-rate": lambda _: {
        "poisson_batch": lambda n, q, stream: poisson_batch(n, min(1.0, 2 * q), stream)
    },
    # all examples or none, each with probability q
    "one-draw-for-all": lambda _: batches(
        lambda batch, n, q: torch.arange(n if len(batch) and batch[0] == 0 else 0)
    ),
    "no-clip-in-passes": lambda _: no_clip_in_passes(),
    "neighbour-in-pass": lambda _: neighbour_in_pass(),
    "ghost-norms-halved": lambda _: {"norms": lambda ghosts: ghost_norms(ghosts) / 2},
    "ghosts-unclipped": lambda _: {
        "weighted_sum": lambda ghosts, f, finite: ghost_sum(ghosts, torch.ones_like(f), finite)
    },
    "count-noise-left-out": lambda _: {"gaussian": lambda total, std, noise: total},
    "count-doubled": lambda _: {
        "gaussian": lambda total, std, noise: gaussian(2 * total, std, noise)
    },
}
"""All mistakes by name; each is made from the number of clients in one output."""
ONLY_GAUSSIAN = (
    "empty-batch-skipped",
    "divisor-from-data",
    "noise-in-16-bits",
    "noise-clamped",
    "noise-permuted",
    "rounded-before-noise",
)
"""Mistakes in Gaussian noise; secure sums have discrete noise."""
ONLY_SUMS = ("shares-for-all", "readers-not-counted", "rotation-doubles", "rotated-part-doubled")
"""Mistakes of secure sums."""
ONLY_SAMPLED = (
    "full-batches",
    "batch-reused",
    "batches-in-order",
    "doubled-rate",
    "one-draw-for-all",
)
"""Mistakes that need a sample rate below 1."""
NEEDS: dict[str, tuple[Callable[[AuditSetting], bool], str]] = {
    **dict.fromkeys(
        ("no-clip-in-passes", "neighbour-in-pass"),
        (can_pass, "clients that share a pass: take trust=client and local_steps=1"),
    ),
    **dict.fromkeys(
        ("ghost-norms-halved", "ghosts-unclipped"),
        (
            lambda setting: bool(ghost_layers(setting, public_generator(0), 1)),
            "ghost clipping: take a method and a model with large weights that are sent whole",
        ),
    ),
    **dict.fromkeys(
        ("count-noise-left-out", "count-doubled"),
        (lambda setting: setting.adaptive is not None, "an adaptive clip: give clip_quantile"),
    ),
    # a sum of n clamped draws ends at 3 sqrt(n) deviations, where one value in 370^n is
    "noise-clamped": (
        lambda setting: len(setting.weights) * setting.stated.honest == 1,
        "noise that is one draw: a sum of several does not end at three deviations, and no number "
        "of outputs that an audit can draw shows where it does; take trust=client and "
        "local_steps=1",
    ),
}
"""What a setting must have for a mistake: a test of the setting, and the words for it."""


def refuse_plant(name: str | None, setting: AuditSetting) -> None:
    """Raise ValueError for a mistake that changes nothing in what is audited."""
    if name is None:
        return
    if name not in PLANTS:
        raise ValueError(f"expected --plant in {', '.join(PLANTS)}, got {name!r}")
    stated = setting.stated
    if name in ONLY_SUMS and setting.sums is None:
        raise ValueError(
            f"--plant {name} is a mistake of secure sums: take trust=secure, got "
            f"trust={stated.trust}"
        )
    if name in ONLY_GAUSSIAN and setting.sums is not None:
        raise ValueError(
            f"--plant {name} is a mistake in Gaussian noise, and trust=secure has discrete noise"
        )
    if name == "noise-left-out" and stated.trust == "server":
        raise ValueError(
            f"--plant {name}: under trust=server no client adds noise; take tenth-of-noise"
        )
    if name in NEEDS:
        is_possible, what = NEEDS[name]
        if not is_possible(setting):
            raise ValueError(f"--plant {name} is a mistake of {what}")
    if name in ONLY_SAMPLED and stated.sample_rate == 1:
        raise ValueError(
            f"--plant {name} changes nothing at sample rate 1, where every unit is in every step"
        )
    if name == "shares-for-all" and stated.honest == stated.clients:
        raise ValueError(
            f"--plant {name} changes nothing where the noise of all {stated.clients} clients counts"
        )
    if name in ("per-block-clip", "clip-misses-block") and len(setting.frame.blocks) == 1:
        raise ValueError(
            f"--plant {name} changes nothing, or leaves no clip, where there is one block: see "
            "no-clip"
        )


@contextmanager
def planted(name: str | None, *, clients: int = 1) -> Iterator[None]:
    """Inside, the mechanism has the named mistake; None plants nothing.

    clients: their number in one output.
    Raises ValueError for an unknown name.
    """
    if name is None:
        yield
        return
    if name not in PLANTS:
        raise ValueError(f"expected a plant in {', '.join(PLANTS)}, got {name!r}")
    with ExitStack() as stack:
        patches = PLANTS[name](clients)
        for function, mistake in patches.items():
            for home in HOMES[function]:
                stack.enter_context(patch(f"{home}.{function}", mistake))
        if "clipped_sum" in patches:  # plants of the clip work on formed gradients
            stack.enter_context(
                patch("fedlsg.training.client_round.allows_ghost_clipping", lambda frame: False)
            )
        yield
