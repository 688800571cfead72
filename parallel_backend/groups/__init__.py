"""Which ranks work together: the mesh of a plan's axes, collectives over them, and the record of their time."""
