"""How a rank hears and is heard beside its jobs: frames for all ranks, the control channel, the heartbeat."""
