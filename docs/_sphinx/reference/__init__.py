"""The pages of docs/reference, from the code: ``python -m docs._sphinx.reference`` writes them, a
test compares.
"""
