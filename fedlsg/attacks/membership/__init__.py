"""Was this example in the data?

answers         what an attack reads of a released model    scores   the attacks, a file a kind
matched_filter  of one payload, and of one client's payloads of several rounds
"""
