"""Weights: where files hold them, how a rank reads its part, what is added to them, where they are kept."""
