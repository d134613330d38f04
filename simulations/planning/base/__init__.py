"""From settings to a ``Base``, which every process of a run has.

``prepare`` loads data, fills gaps and makes the ``Base`` (``run_base``). It has one object for each
question: ``clients`` (public numbers of all clients), ``training_rows`` (those of this process),
``initial_state`` (model and states of the start), and the ``Uplink`` of ``protocol.expectations``
(how values travel). ``isolation_level`` and ``memory`` choose what the settings leave open;
``start_weights`` and ``charged_before`` are weights and charges that it begins with;
``disclosure`` says what of the run may be seen.
"""
