"""What computes attention on a rank: kernels by the plan and the device, and the pattern of sparse attention."""
