"""Starts a group's processes, on one machine or several. Keeps their logs, and reports why they failed."""
