"""What a user starts and gets: a run by command or ``simulate``, its plan, its page while it goes
on, its results.
"""
