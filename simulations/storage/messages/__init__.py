"""The messages of a run: bytes.csv, and the time that they would take on a link."""
