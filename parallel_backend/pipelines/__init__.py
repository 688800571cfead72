"""What makes the calls of one of diffusers' own pipelines parallel: those of its transformer, and of its other models.
Only `library.py` imports it."""
