"""fedlsg inside of a user's Flower app: a ClientApp and a Strategy for the app's own workload."""
