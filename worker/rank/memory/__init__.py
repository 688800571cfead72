"""A rank's memory: what it has and gives back, and what it lacks when it is out of memory (OOM)."""
