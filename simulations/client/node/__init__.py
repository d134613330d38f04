"""A deployed client, on a machine of its own: its terms, its folder and its data."""
