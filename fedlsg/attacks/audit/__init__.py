"""Falsify a claimed epsilon: canaries, planted mistakes, bounds and verdict.

played         canaries and games, on the code that a run uses
checks         of what was recorded
training_mode  canaries in a real run, from its recorded payloads
bounds         lower bounds on epsilon from guesses about canaries
verdict        whether the claim is falsified, and why

Every check is a test whose probability of accusing correct code is at most its ``significance``: 0
for events that correct code does not give. Recorded outputs and what is stated are all that checks
read.
"""
