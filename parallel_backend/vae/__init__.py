"""Runs VAEs of images and videos on several ranks, each with a band of the rows.

Processes without ranks read only `classes`, a description.
"""
