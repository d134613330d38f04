"""``fedlsg compare --search``: settings of each method are chosen by trials, then the comparison runs with the best.

space    ranges and lists of values       rows     rows of the trials             output   files and page
pickers  what is tried next: TPE, random, grid     privacy  what choosing costs   plots    figures
trials   the trials of all methods, in turn        arm      a method, its trials  command  the search and the runs after
"""
