"""Groups: their own weight in the clip and their own learning rate, with the sensitivity as
claimed.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.frame import Frame, group_of
from fedlsg.method import Method, Schedule, make_frame
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.training.client_round import per_unit

SHAPES = {
    "body.weight": (5, 4),
    "body.bias": (5,),
    "norm.weight": (5,),
    "classifier.weight": (3, 5),
}
WEIGHTS = {name: torch.randn(shape, dtype=torch.float64) for name, shape in SHAPES.items()}


def frame(mechanism: Mechanism) -> Frame:
    method = Method(name="dpsgd", mechanism=mechanism)
    schedule = Schedule(rounds=1)
    return make_frame(
        method,
        WEIGHTS,
        {},
        carried=(),
        round=1,
        updates=0,
        schedule=schedule,
        seed=0,
        classifier="classifier",
    )


def gradients(f: Frame, batch: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(batch, b.size, generator=generator, dtype=torch.float64) * 10 for b in f.blocks
    ]


def test_who_belongs_where():
    groups = [group_of(name, shape, "classifier") for name, shape in SHAPES.items()]
    assert groups == ["carriers", "norms", "norms", "classifier"]
    assert group_of("classifier2.weight", (3, 5), "classifier") == "carriers"
    assert group_of("anything.weight", (3, 5), "") == "carriers"


def test_weights_by_hand():
    """Gradient (3, 4) of two groups with weights 1 and 2: norm sqrt(9 + 64), clipped to 1,
    unscaled.
    """
    mechanism = Mechanism(kind="clip-only", clip_norm=1.0, classifier_clip_weight=2.0)
    f = frame(mechanism)
    g = [torch.zeros(1, b.size, dtype=torch.float64) for b in f.blocks]
    g[0][0, 0], g[3][0, 0] = 3.0, 4.0
    total = clipped_sum(per_unit(g, f, 1), mechanism)
    back = f.gradients(total)
    scale = 73**-0.5
    torch.testing.assert_close(back["body.weight"].flatten()[0], torch.tensor(3 * scale).double())
    torch.testing.assert_close(
        back["classifier.weight"].flatten()[0], torch.tensor(4 * scale).double()
    )


@given(
    norms=st.floats(0.01, 100),
    classifier=st.floats(0.01, 100),
    copies=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_one_example_moves_the_clipped_sum_by_the_clip_norm_at_most(
    norms, classifier, copies, seed
):
    mechanism = Mechanism(clip_norm=0.7, norms_clip_weight=norms, classifier_clip_weight=classifier)
    f = frame(mechanism)
    g = gradients(f, 4 * copies, seed)
    whole = clipped_sum(per_unit(g, f, copies), mechanism)
    less = clipped_sum(per_unit([x[copies:] for x in g], f, copies), mechanism)
    assert (whole - less).norm() <= mechanism.sensitivity(len(f.blocks)) * (1 + 1e-9)


def test_planted_mistakes_are_seen():
    """Negative control: weights after the clip, or copies clipped one by one, move the sum by more
    than C.
    """
    mechanism = Mechanism(clip_norm=0.7, classifier_clip_weight=3.0)
    f = frame(mechanism)
    g = gradients(f, 4)
    clipped = clipped_sum([x[:1] for x in g], mechanism)
    late = torch.cat(
        [p.flatten() * b.weight for p, b in zip(f.split(clipped), f.blocks, strict=True)]
    )
    assert late.norm() > 0.7 * 1.01
    # Four copies of one example, clipped as four examples.
    assert (
        clipped_sum(per_unit([x[:1].expand(4, -1) for x in g], f, 1), mechanism).norm() > 0.7 * 1.01
    )
    assert clipped_sum(per_unit([x[:1].expand(4, -1) for x in g], f, 4), mechanism).norm() <= 0.7
