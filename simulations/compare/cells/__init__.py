"""The runs of a comparison: which ones, and running them in processes of their own."""
