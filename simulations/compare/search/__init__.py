"""``fedlsg compare --search``: settings of each method are chosen by trials, then the comparison runs with the best.

space    ranges and lists of values                privacy  rows of the trials, and what choosing costs
pickers  what is tried next: TPE, random, grid     output   files and page
trials   methods and their trials, in turn         plots    figures
command  the search and the runs after
"""
