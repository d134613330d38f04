"""Falsify a claimed epsilon: canaries, planted mistakes, bounds and verdict.

What is played, on the code that a run uses:

    stated          the threat model and the claim, as a user states them
    setting         what runs, and how many outputs and canaries are enough
    canaries        units whose gradients, or updates, are chosen
    injection       chosen gradients in place of a backward pass
    outputs         one output of a round as its reader sees it
    games           many equal units: norms, parts, places, passes
    unit_mode       canaries through every round of a schedule
    training_mode   canaries in a real run, from its recorded payloads
    coverage        which code an audit ran
    plants          mistakes that an audit has to find

What is made of it:

    bounds          lower bounds on epsilon from guesses about canaries
    check           a check and its outcome; what is claimed of a unit
    all_checks      all checks of what the unit mode recorded
    unit_checks     how far units move the outputs, and how they are drawn
    noise_checks    the noise of outputs that hold nothing else
    count_checks    the noisy count of an adaptive clip
    movement_bound  the bound on how far units move an output
    verdict         whether the claim is falsified, and why

Every check is a test whose probability of accusing correct code is at most its ``significance``: 0
for events that correct code does not give. Recorded outputs and what is stated are all that checks
read.
"""
