"""The parts of a page, and its one builder.

page              what a page consists of
template          its HTML, and the builder
style             the style sheet
table             tables from columns: each fact is computed once, for pages, terminals and files
figure            the one style of figures, and charts as parts of a page
facts             sections that pages share
settings_section  the settings of a run
"""
