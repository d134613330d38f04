"""Many runs next to each other: a grid of runs, one table, figures and a page.

cells/    which runs, and running them        lines.py       means over seeds       page.py, output.py  report and files
collect   results of runs, and their labels   table.py       the table              view.py             axis and link
command   compare and report                  bytes_axis.py  bytes at equal epsilon plots.py, bytes_plot.py  figures
"""
