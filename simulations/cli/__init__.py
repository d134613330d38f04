"""The command line ``fedlsg``."""
