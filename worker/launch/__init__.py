"""How a group's processes start, on one machine or several, where their logs go, and how the reason of a failure is
told."""
