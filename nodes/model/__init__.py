"""What stands behind MODEL: the model's description, its remote module and patcher, LoRA, loop mode."""
