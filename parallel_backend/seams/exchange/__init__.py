"""How tokens of several ranks attend to one another: what travels over the axes ulysses and ring, and when."""
