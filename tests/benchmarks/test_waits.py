"""The seconds of accounting are measured on what runs use."""

from benchmarks.speed import waits


def test_the_ledgers_of_many_clients_are_measured(monkeypatch):
    monkeypatch.setattr(waits, "MANY", (60,))
    found = waits.many("many")
    assert found.keys() == {"start, 60 clients", "ledgers of a round, 60 clients"}
    assert all(seconds > 0 for seconds in found.values())
