"""What ComfyUI and the ranks send each other: requests, frames, tensors, the socket and its handshake. Both sides
import it; it imports neither."""
