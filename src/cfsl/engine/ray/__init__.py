"""The engine 'ray': steps on the machines of a Ray cluster."""
