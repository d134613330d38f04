"""Many runs next to each other: a grid of runs, one table, figures and a page.

grid, grid_file           which runs, and a check of all
runner, worker, progress  running them
collect, lines            results of runs, and means over seeds
table, plots, heat_maps   table, sentences, figures
bytes_axis                bytes at equal epsilon
command, output           compare and report, files and page
search/                   settings chosen by trials before
"""
