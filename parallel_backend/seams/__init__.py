"""Where parallelism enters an unmodified model: token boundary, attention, stage boundary, batch."""
