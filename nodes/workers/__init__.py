"""The worker groups of this ComfyUI, their settings, and what they tell the editor."""
