"""Autoencoders (VAE) of images and videos on several ranks, each with a band of the rows.

`classes` is a description, which ComfyUI's process reads, too; the rest is for ranks and scripts.
"""
