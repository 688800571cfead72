"""HTTP routes for the panel and the plan view."""
