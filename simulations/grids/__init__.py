"""What knows Flower messages only: a grid of simulated clients, piles of messages, and refusals."""
