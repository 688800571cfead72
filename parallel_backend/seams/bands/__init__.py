"""Bands: each rank computes some rows of a picture, and gets what it needs of the others. For VAEs and UNets."""
