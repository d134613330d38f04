"""What a run would send, spend and take, without training it: ``fedlsg plan``."""
