"""The worker groups of this ComfyUI, their settings, and their reports to the editor."""
