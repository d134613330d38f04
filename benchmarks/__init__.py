"""Measurements that back the numbers in docs/: each file is a command of its own and says how to
run it.
"""
