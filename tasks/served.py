"""Whether files of runs open from Prefect's interface.

Guarantee: asked once a process, server and run; a server that does not answer, or that the run is out of reach of,
gives none.
"""

from functools import cache

import httpx
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

from relax_core.tracking.links import FILES

ASKED_SECONDS = 5.0


def file_server(run: str) -> str | None:
    """Address of the server in use if it gives files of a run (``deployments.files``).

    Args:
        run: its address.
    """
    url = PREFECT_API_URL.value()
    return _asked(url.rstrip("/").removesuffix("/api"), run) if url else None


@cache
def _asked(server: str, run: str) -> str | None:
    secret = PREFECT_API_AUTH_STRING.value()
    name, _, password = secret.get_secret_value().partition(":") if secret else ("", "", "")
    try:
        auth = (name, password) if name else None
        answer = httpx.get(f"{server}{FILES}", params={"run": run}, auth=auth, timeout=ASKED_SECONDS)
    except httpx.HTTPError:
        return None
    return server if answer.status_code == 200 and answer.text == "relax" else None
