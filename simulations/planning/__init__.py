"""The plan of a run before it starts, in this order.

``prepare``: data, partition, model. ``run_base``: what all of it is one object of. ``row_faults``,
``trust``: what is refused. ``start_weights``, ``known_weights``, ``warm_start``, ``before``: the
weights and the spent epsilon that a run begins with. ``plan``: noise, terms, schedule.
``own_choices``, ``advice``: what a user is told. ``continuity``: what a resumed run may not change.
"""
