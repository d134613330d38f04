"""What every workload builds on: its types, the cache, and where data sets are found."""
