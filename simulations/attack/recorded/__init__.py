"""What a recorded run gives an adversary: observations, the updates to attack, the truth, the claim, the report."""
