"""Weights: where they lie in files, how a rank reads its part, what is added to them, where they wait."""
