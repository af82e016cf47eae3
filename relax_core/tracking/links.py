"""Where a file of a run opens in a browser.

Guarantee: a link is made only where it opens: an address of the web, or a file that a server of Relax gives. Browsers
open no file of this machine from a page that came by HTTP, and no object store.
"""

from urllib.parse import quote

FILES = "/relax/files"
"""Path of ``deployments.files`` on a server."""


def place(folder: str, name: str, run: str = "", server: str | None = None) -> str:
    """Where something is, as Markdown: a link, or a name in code.

    Args:
        folder: that it is in; empty: the name is all.
        name: of the file.
        run: address of the run that it is a file of.
        server: address of a server that gives files of runs; None: there is none.
    """
    whole = f"{folder.rstrip('/')}/{name}" if folder else name
    if whole.startswith(("http://", "https://")):
        return f"[{name}]({whole})"
    inside = f"{run.rstrip('/')}/"
    if server and run and whole.startswith(inside):
        file = whole.removeprefix(inside)
        return f"[{name}]({server.rstrip('/')}{FILES}?run={quote(run, safe='')}&file={quote(file)})"
    return f"`{name}`"
