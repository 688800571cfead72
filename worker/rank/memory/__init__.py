"""A rank's memory: what it has, gives back, and lacks."""
