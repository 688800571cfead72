"""The denoising loop: schedulers, their steps, and PipeFusion's order of patches."""
