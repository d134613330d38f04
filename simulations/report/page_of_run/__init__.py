"""report.html of one run: is it private, does it work, what did it cost, what would help."""
