"""A small HTTP server of a test, on a thread of its own.

Guarantee: it listens at ``url`` once made, and after ``stop`` nothing of it is left: no thread, socket or loop.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Served:
    """An application of aiohttp on loopback.

    Args:
        routes: handlers by method and path, as ``"POST /generate"``.
    """

    def __init__(self, routes: Mapping[str, Handler]) -> None:
        self.url = ""
        self.loop = asyncio.new_event_loop()
        self._ended = False
        self._routes, self._ready = dict(routes), threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def end(self) -> None:
        """Let it end, with what it is answering; from any thread, and more than once."""
        if not self._ended:
            self._ended = True
            self.loop.call_soon_threadsafe(self.loop.stop)

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self.end()
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        app = web.Application()
        for route, handler in self._routes.items():
            app.router.add_route(*route.split(), handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.loop.run_until_complete(runner.setup())
        self.loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(runner.cleanup())
            self.loop.close()
