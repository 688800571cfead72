"""Runs VAEs of images and videos on several ranks, each with a band of the rows.

ComfyUI's process reads only `classes`, a description. The rest is for ranks and scripts.
"""
