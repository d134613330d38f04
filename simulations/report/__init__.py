"""What a user sees of runs: pages, tables, figures, terminal.

page     what a page consists of, and its one builder (template: HTML and style sheet)
table    tables from columns: each fact is computed once, for pages, terminal, Markdown, CSV and JSON
figure   the one style of figures; svg makes parts of a page of them (colours: those of both)
words    one wording for each fact of a run; facts: sections that pages share; terminal, progress: while it runs
"""
