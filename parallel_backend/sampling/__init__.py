"""The denoising loop: schedulers, their steps, PipeFusion's order of patches."""
