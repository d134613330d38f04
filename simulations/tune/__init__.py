"""``fedlsg tune``: choose settings of a method by trials, bracket the best, say what choosing costs in privacy."""
