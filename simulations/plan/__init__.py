"""What a run will do, before it starts: data of each client, method, schedule, noise."""
