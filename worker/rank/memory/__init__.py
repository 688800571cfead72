"""A rank's memory: what it has, what it frees, and what it lacks when it is out of memory (OOM)."""
