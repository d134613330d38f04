"""A round under a secure sum: its stages as Flower records, and what the server asks for and adds."""
