"""What goes between ComfyUI and the ranks: requests, frames, tensors, the socket and its handshake. Imported by both
sides; imports neither."""
