"""What a user sees of runs: terminal, figures, HTML pages."""
