"""Environment of Prefect and Ray, set before either is imported.

Guarantee: importing this module (and with it any flow) makes no network call, and afterwards Prefect and Ray call
nobody; a standing Prefect server of `relax up` is used where there is one. Variables that the user has set are kept.
"""

import os

from relax_core.cluster.services import QUIET, prefect_environment, recorded


def prepare() -> None:
    """Set what is not set. Safe to call again."""
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    # A cold start of the temporary server takes 7 to 18 s, near Prefect's limit of 20 s on a busy machine.
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "90")
    # SQLite is locked for longer than Prefect's limit of 10 s where the disk or the processors are busy.
    os.environ.setdefault("PREFECT_SERVER_DATABASE_TIMEOUT", "60")
    # Each retry waits twice as long: 4 are half a minute a call, enough for a server that is started again.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "4")
    # What a server says whose database is gone for a moment.
    os.environ.setdefault("PREFECT_CLIENT_RETRY_EXTRA_CODES", "500")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "relax_core,data,tasks,flows")
    server = recorded().get("prefect")
    if server is not None and os.environ.get("PREFECT_API_URL", server.address) == server.address:
        for key, value in prefect_environment(server).items():  # its password too
            os.environ.setdefault(key, value)


prepare()
