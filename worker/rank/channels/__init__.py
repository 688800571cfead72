"""How a rank communicates beside its jobs: frames for all ranks, the control channel, the heartbeat."""
