"""The parts of the command `python -m parallel_backend`. Only `__main__` imports them."""
