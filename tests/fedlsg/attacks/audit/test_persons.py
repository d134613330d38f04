"""The audit of persons: a canary has 20 rows."""

from dataclasses import replace

import pytest
import torch

from fedlsg.attacks.audit.played import outputs
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.config.units import unit_named
from fedlsg.privacy import clipped_sum
from fedlsg.training import client_round
from tests.fedlsg.support.audit_setting import audit, secure, setting


def of_patients(made: AuditSetting, **changes) -> AuditSetting:
    stated = replace(made.stated, unit="patient")
    return replace(made, unit=unit_named("patient"), stated=stated, **changes)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "changes",
    [{}, {"person_gradient": "sum"}, {"person_rows": 3}],
    ids=["mean", "sum", "three rows"],
)
def test_the_shipped_step_of_persons_passes(changes):
    made = of_patients(setting(rounds=2), **changes)
    assert not audit(made, canaries=60).falsified


@pytest.mark.slow
def test_persons_in_a_secure_sum_pass():
    assert not audit(of_patients(secure(setting(rounds=2))), canaries=60).falsified


def test_a_clip_of_rows_of_a_person_is_caught(monkeypatch):
    """Negative control: each row is clipped, the clipped rows are added up, and nobody is clipped
    once more: a person moves the sum by 20 C.
    """

    def rows_alone(x, persons, rows, size):
        gradients = client_round.row_gradients(x, *x.batch(rows), len(rows))
        clipped = clipped_sum(gradients, x.mechanism)
        return list(clipped.split([b.kept for b in x.frame.blocks]))

    monkeypatch.setattr(client_round, "_gradient_of_person", rows_alone)
    monkeypatch.setattr(
        client_round,
        "clipped_sum",
        lambda units, mechanism, wide: torch.cat([u.double().sum(0).flatten() for u in units]),
    )
    assert audit(of_patients(setting(rounds=2)), canaries=60).falsified


def test_persons_that_are_drawn_as_their_rows_are_caught(monkeypatch):
    """Negative control: 20 rows that join one by one, each clipped, and no person at all."""
    monkeypatch.setattr(outputs, "Persons", lambda person, **_: None)
    honest = outputs.client_step

    def of_rows(*args, num_examples, **given):
        return honest(*args, num_examples=20 * num_examples, **given)

    monkeypatch.setattr(outputs, "client_step", of_rows)
    assert audit(of_patients(setting(rounds=2)), canaries=60).falsified
