"""What plans of a model will cost on this machine: the model's forward counted, the machine's figures kept."""
