"""Text classification: tasks of GLUE, and any data set of the hub."""
