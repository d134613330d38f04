"""The plan of a run before it starts.

``base`` leads from settings to a ``Base``, which every process has. ``plan`` adds ``client_noise``
on the server's side, after ``faults`` and ``trust`` have refused what cannot run. ``advice`` is
what a user is told. ``earlier_runs``: what a run has from runs before it.
"""
