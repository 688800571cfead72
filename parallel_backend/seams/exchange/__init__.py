"""How tokens of several ranks attend to each other: what is sent over the axes ulysses and ring, and when."""
