"""What a run has from earlier runs: the settings and data that a resumed one must not change, and
weights of this user's, with the ledgers that belong to them.
"""
