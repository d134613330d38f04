"""Was this example in the data?

answers         what an attack reads of a released model
scores          the attacks on these answers, a file for each kind
matched_filter  the attack on one payload, and on one client's payloads of several rounds
"""
