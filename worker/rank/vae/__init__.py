"""The VAE of a rank. Imports what the other rooms do; with its engine, when a request first asks for one."""
