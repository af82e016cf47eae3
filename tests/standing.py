"""What `relax up` starts, for tests that use Relax through Prefect."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RELAX = str(Path(sys.executable).with_name("relax"))
PREFECT = str(Path(sys.executable).with_name("prefect"))


class Standing:
    """Services with a home of their own; ``relax up`` on entering, ``relax down`` on leaving.

    Attributes:
        home: RELAX_HOME.
        folder: where ``relax up`` was called: relative paths in parameters mean it.
        env: environment for subprocesses that use the services.
        api, ui: addresses of the Prefect server.
    """

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder / "work"
        for made in (self.home, self.folder, folder / "prefect"):
            made.mkdir()
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RAY_", "RELAX_"))
        }
        self.env = {**kept, "RELAX_HOME": str(self.home), "PREFECT_HOME": str(folder / "prefect")}
        self.api = self.ui = ""

    def __enter__(self) -> "Standing":
        self.relax("up", check=True)
        services = json.loads((self.home / "services.json").read_text())
        self.api = services["prefect"]["address"]
        self.ui = self.api.removesuffix("/api")
        self.env["PREFECT_API_URL"] = self.api
        return self

    def __exit__(self, *error: object) -> None:
        self.relax("down")

    def relax(self, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """``relax WORDS``, in ``folder``."""
        return self._run([RELAX, *words], **options)

    def prefect(self, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """``prefect WORDS``, in ``folder``."""
        return self._run([PREFECT, "--no-prompt", *words], **options)

    def _run(self, command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        settings = {
            "env": self.env,
            "cwd": self.folder,
            "capture_output": True,
            "text": True,
            "timeout": 300,
            **options,
        }
        result: subprocess.CompletedProcess[str] = subprocess.run(command, **{**settings, **options})
        return result
