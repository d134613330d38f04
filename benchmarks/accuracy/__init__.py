"""Accuracy of methods and of settings that nobody tuned."""
