"""The VAE of a rank. Its modules are imported when a request first needs a VAE."""
