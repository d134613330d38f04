"""Membership of single examples: shadow models, payloads, and what the claimed epsilon allows."""
