"""The parts of a private step in a user's own loop: data, noise, account, optimizer
(``fedlsg.strategies.private_step``).
"""
