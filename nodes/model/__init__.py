"""What a MODEL consists of: the model's description, its remote module and patcher, loop mode."""
