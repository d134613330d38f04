"""What ``fedlsg inspect`` measures on a simulation, and how it is shown. Nothing in here is private."""
