"""Recover inputs from one payload: closed forms, and matching by optimisation."""
