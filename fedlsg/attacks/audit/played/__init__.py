"""What an audit plays, on the code that a run uses.

stated        the threat model and the claim, as a user states them
setting       what runs
sample_sizes  how many outputs and canaries are enough
canaries      units whose gradients, or updates, are chosen
injection     chosen gradients in place of a backward pass
outputs       one output of a round as its reader sees it
games         many equal units: norms, parts, places, passes
unit_mode     canaries through every round of a schedule
coverage      which code an audit ran
plants        mistakes that an audit has to find
"""
