"""The mesh of a plan's axes, collectives over them, and the timeline of a rank."""
