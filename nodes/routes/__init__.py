"""HTTP routes for the panel and the plan view, and what is done as soon as a prompt is queued."""

from aiohttp import web

ROUTES = web.RouteTableDef()
MAX_BODY = 1 << 16  # bytes that a page may send
