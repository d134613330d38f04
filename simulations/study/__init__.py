"""``fedlsg compare --study``: one Optuna study for each method, equally many trials, then the comparison."""
