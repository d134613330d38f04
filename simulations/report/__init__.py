"""What a user sees of runs: pages, tables, figures, terminal.

page     what a page consists of; template: its one builder and its HTML; style: the style sheet
table    tables from columns: each fact is computed once, for pages, terminal, Markdown, CSV and
         JSON
chart    a figure as data; figure: the one style of figures, and parts of a page of them (colours:
         those of both)
page_of_run  report.html of a run
words    one wording for each fact of a run; facts: sections that pages share; terminal, progress:
         while it runs
"""
