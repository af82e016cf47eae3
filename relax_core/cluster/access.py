"""What keeps others out of the standing services: Ray's token and Prefect's password.

Guarantee: both are made once, or taken from the environment of `relax up`, and kept in files that only their owner may
read (``$RELAX_HOME/secrets``, mode 0600); whoever has that folder uses the services without being asked. Nothing here
prints them.
"""

import base64
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from data.errors import UserError

RAY_TOKEN, PREFECT_AUTH = "ray-token", "prefect-auth"

USER = "relax"
"""Name before the password that `relax up` makes."""


def secret_file(home: Path, name: str) -> Path:
    """Where a secret is kept."""
    return home / "secrets" / name


def ray_token(home: Path, environment: Mapping[str, str]) -> Path:
    """The file of Ray's token: that of ``RAY_AUTH_TOKEN`` or ``RAY_AUTH_TOKEN_PATH``, else the one that is kept, else a
    new one."""
    given = environment.get("RAY_AUTH_TOKEN", "")
    if not given and (path := environment.get("RAY_AUTH_TOKEN_PATH")):
        try:
            given = Path(path).expanduser().read_text().strip()
        except OSError as error:
            raise UserError(
                f"RAY_AUTH_TOKEN_PATH {path}: cannot be read ({error.strerror}).", "Name the file of a token."
            ) from None
    return _kept(secret_file(home, RAY_TOKEN), given, secrets.token_hex(32))


def prefect_auth(home: Path, environment: Mapping[str, str]) -> str:
    """``NAME:PASSWORD`` of Prefect's server: that of ``PREFECT_SERVER_API_AUTH_STRING`` or ``PREFECT_API_AUTH_STRING``,
    else the one that is kept, else a new one."""
    given = environment.get("PREFECT_SERVER_API_AUTH_STRING") or environment.get("PREFECT_API_AUTH_STRING") or ""
    if given and not all(given.partition(":")):
        raise UserError(
            "PREFECT_SERVER_API_AUTH_STRING is no password: it has no name, no colon or nothing behind it.",
            "Write NAME:PASSWORD, or unset it: then one is made.",
        )
    path = _kept(secret_file(home, PREFECT_AUTH), given, f"{USER}:{secrets.token_urlsafe(24)}")
    return path.read_text()


def ray_environment(home: Path, protected: bool) -> dict[str, str]:
    """Variables for processes of Ray that use the standing head."""
    if not protected:
        return {"RAY_AUTH_MODE": "disabled"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(secret_file(home, RAY_TOKEN))}


def prefect_environment(home: Path, protected: bool) -> dict[str, str]:
    """Variables for processes that use the standing Prefect server; none where its password cannot be read."""
    if protected:
        try:
            return {"PREFECT_API_AUTH_STRING": secret_file(home, PREFECT_AUTH).read_text()}
        except OSError:
            pass
    return {}


def basic(auth: str) -> str:
    """The header ``Authorization`` of a request."""
    return f"Basic {base64.b64encode(auth.encode()).decode()}"


def _kept(path: Path, given: str, made: str) -> Path:
    """A file with what is given, else with what it had, else with what was made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    if path.exists() and path.stat().st_size and (not given or path.read_text() == given):
        return path
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(given or made)
    temporary.replace(path)
    return path
