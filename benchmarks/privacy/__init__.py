"""Epsilon, what an attack reads, and what an audit finds."""
