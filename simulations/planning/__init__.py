"""The plan of a run before it starts: from settings to a ``Base``, from a base to a ``Plan``.

``prepare`` loads data, fills gaps and makes the ``Base`` (``run_base``), which every process has.
It has one object for each question: ``clients`` (public numbers of all clients), ``training_rows``
(those of this process), ``initial_state`` (model and states of the start), and the ``Uplink`` of
``protocol.expectations`` (how values travel). ``isolation_level`` and ``memory`` choose what the
settings leave open.
``start_weights``, ``known_weights``, ``warm_start``, ``before``: the weights and the spent epsilon
that a run begins with.
``plan`` adds ``client_noise`` to a base, on the server's side, after ``model_faults``,
``row_faults``, ``client_test_rows`` and ``trust`` have refused what cannot run.
``own_choices``, ``advice``, ``balance``: what a user is told. ``disclosure``: what of a run may be
seen. ``continuity``, ``data_digest``: what a resumed run may not change.
"""
