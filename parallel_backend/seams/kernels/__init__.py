"""What computes attention on a rank: kernels by the plan and the device."""
