"""A file that gives ComfyUI's server a route when it is imported, as many packs' files do. A rank has no server."""

from aiohttp import web
from server import PromptServer

from .scale import scale

serv = PromptServer.instance


@serv.routes.get("/habits")
async def answer(_request):
    return web.json_response([])


def louder_beside_routes(_module, _args, output):
    return scale(output)
