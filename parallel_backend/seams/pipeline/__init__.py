"""PipeFusion: stages that hold a part of the blocks each, what they send each other, and patches of the image."""
