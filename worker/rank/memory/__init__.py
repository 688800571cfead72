"""A rank's memory: its size and use, how it is freed, and the report on a lack of it (OOM)."""
