"""Rounds of the engines, next to a bare loop and to other frameworks."""
