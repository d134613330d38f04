"""Many runs next to each other: a grid of runs, one table, figures and a page.

grid        which runs, and the processes that run them
results     what they gave: means over seeds, pairs, table, sentences, figures, files
search      settings chosen by trials before
The command and ``fedlsg.compare`` (``in_python``) put them together.
"""
