"""Attention overrides as node packs write them, and the program that looks at them."""
