"""Python's way in: ``fedlsg.simulate`` and what it returns; ``fedlsg`` offers these names."""
