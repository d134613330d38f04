"""``fedlsg audit``: tries to prove the epsilon of a run or of settings wrong."""
