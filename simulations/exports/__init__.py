"""What a run left, for programs without fedlsg: ``fedlsg export`` and ``fedlsg payload``."""
