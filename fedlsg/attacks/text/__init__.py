"""Recover tokens from one payload."""
