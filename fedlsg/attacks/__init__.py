"""What an adversary gets from the updates that were sent, and how an audit tries to prove the
epsilon wrong.

Nothing here reads ground truth: an attack is a function of an Observation, of what the adversary is
assumed to know (``Knowledge``), and of a prior.
"""
