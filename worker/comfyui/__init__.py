"""What ComfyUI's own code does for a model file, in ComfyUI's process and in the ranks alike. ComfyUI's modules are
imported in functions: a rank can import them only once it has been told where they are."""
