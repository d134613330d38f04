"""What a user sees of runs: pages, tables, figures, terminal.

words        one wording for each fact of a run
drawing      figures as data
pages        the parts of a page, and its one builder
page_of_run  report.html of a run
terminals    the same facts on a terminal, and progress
"""
