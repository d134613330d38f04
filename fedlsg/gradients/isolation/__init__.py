"""How a private pass runs code of users, so that one example cannot reach the gradient of another.

Three levels: ``isolated``, ``rows`` and ``checked`` (``levels``).
"""
