"""The objects behind a MODEL: the model's description, its remote module and patcher, and loop mode."""
