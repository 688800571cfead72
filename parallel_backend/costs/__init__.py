"""Predicts what a plan costs before it runs.

`forward` counts what a forward computes, and `memory` the memory that it needs. `machine` has the speed of devices and
links. `roofline` combines them to the time of a plan's step. `choose` finds the fastest plan that fits.

Processes without torch.distributed import this, too.
"""
