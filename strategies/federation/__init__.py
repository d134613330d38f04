"""Between server and clients: which node is which client, what they send as Flower messages, what the server checks."""
