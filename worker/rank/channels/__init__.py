"""How a rank communicates outside of its jobs: frames for all ranks, questions, the heartbeat."""
