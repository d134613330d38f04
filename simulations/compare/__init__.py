"""Many runs side by side: a grid of them, one tidy table, plots and a page.

grid.py      which cells           results.py   what a run directory holds      plots.py   figures
worker.py    one cell's process    table.py     means over seeds                page.py    report.html of many runs
runner.py    all cells             commands.py  the two commands                run_page.py  report.html of one run
view.py      axis and link         terminal.py  tables on a terminal            course.py   its figure
bytes_axis.py  all bytes at equal epsilon                                       bytes_plot.py  their figure
"""
