"""A MODEL that any node has made, as Parallelize Model takes it."""
