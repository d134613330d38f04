"""Many runs next to each other: a grid of runs, one table, figures and a page.

cells/    which runs, and running them        lines       means over seeds         output  files and page
collect   results of runs, and their labels   table       the table                plots         figures
command   compare and report                  bytes_axis  axes, bytes at equal epsilon
search/   settings chosen by trials before
"""
