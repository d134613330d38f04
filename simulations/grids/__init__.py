"""What knows Flower messages only: grids that share messages out to clients, and how actors are started and woken."""
