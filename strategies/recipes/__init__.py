"""One recipe a file: a function ``recipe(**settings) -> Method``. A new file here is a new method;
nothing else is.
"""
