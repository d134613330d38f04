"""What training costs: one step, one wait, one million clients."""
