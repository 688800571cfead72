"""How a rank communicates outside of its jobs: frames for all ranks, the control channel, the heartbeat."""
