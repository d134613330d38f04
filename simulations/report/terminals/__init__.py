"""What a user sees on a terminal, and the progress of a command."""
