"""The plan of a run before it starts: data of each client, method, schedule, noise."""
