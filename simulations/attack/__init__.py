"""``fedlsg attack``: what an adversary gets from the payloads that a run recorded.

record.py  observations of a recorded run, truth not among them      truth.py  the batches, for scoring only
"""
