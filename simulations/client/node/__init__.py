"""A client on a machine of its own: its terms, its folder, its data. A simulated client needs none
of this.
"""
