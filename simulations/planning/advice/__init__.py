"""What a plan, or a run that ended at guessing, tells its user, from public numbers alone."""
