"""Attacks on the updates that were sent, and audits that test the claimed epsilon.

Nothing here reads ground truth: an attack is a function of an Observation, of what the adversary is
assumed to know (``Knowledge``), and of a prior.
"""
