"""Between server and clients: nodes, messages, and what the server checks."""
