"""Rollouts as one HTML page: every token of the chosen samples, coloured by what is known of it.

Guarantee: the page is one file that asks for nothing else and runs no script but its own (it says so in a policy that
browsers enforce), whatever prompts and responses hold. The same run gives the same page, which is no part of what
manifests name. Its size is bounded, see ``relax_core.show.content``.
"""

import base64
import hashlib
import html
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from data.errors import UserError
from data.files import FileStore
from data.jsontext import dumps
from data.store import RunStore
from relax_core.replay.recorded import recorded_config
from relax_core.show.content import PAGE_SAMPLES, page_data, select
from relax_core.show.reading import Sample, Shown, read_step
from relax_core.show.samples import Key
from relax_core.show.tokens import Vocabulary, vocabulary_in

PAGES = "pages"
"""Folder of a run for pages."""

PAGES_KEPT = 20
"""Pages that ``write_page`` leaves there."""

_IDS = "token ids instead of texts"


def write_page(store: RunStore, step: int, path: str | None = None, limit: int = PAGE_SAMPLES) -> str:
    """Write the page of a step.

    Args:
        path: a file or URL; None: ``pages/step-000012.html`` in the run directory, where the pages of the newest
            ``PAGES_KEPT`` steps stay.
        limit: samples, at most.

    Returns:
        Where it is: a path, or a URL.

    Raises:
        UserError: the step has no rollout, or the page cannot be written.
    """
    content = page(store, read_step(store, step), limit=limit)
    if path is not None:
        return write_html(path, content)
    name = f"{PAGES}/step-{step:06d}.html"
    store.write_bytes(name, content.encode())
    pages = [name for name in store.ls(PAGES) if name.startswith("step-") and name.endswith(".html")]
    for old in pages[:-PAGES_KEPT]:
        if old != f"step-{step:06d}.html":
            store.delete(f"{PAGES}/{old}")
    return store.uri(name)


def write_html(path: str, content: str) -> str:
    """Write a page to a file or URL; returns where it is.

    Raises:
        UserError: it cannot be written.
    """
    folder, slash, name = path.rpartition("/")
    if not name:
        raise UserError(f"--html {path}: is a folder.", "Name a file: --html rollouts.html.")
    files = FileStore(folder + slash or ".")
    files.write_bytes(name, content.encode())
    return files.uri(name)


def vocabulary_of(store: RunStore, model: str | None = None) -> tuple[Vocabulary | None, str | None]:
    """The tokens of a run's model, or why they are not known.

    Args:
        model: its folder; None: what the run's ``--hf-checkpoint`` names, looked for from here and, where that is a
            relative path, from the folders above the run.
    """
    try:
        named = model or recorded_config(store)[0].checkpoint.hf_checkpoint
        if not named:
            return None, f"{_IDS}: the run names no --hf-checkpoint"
        above = Path(store.root).parents if store.is_local and not os.path.isabs(named) else ()
        found = next((place for place in (Path(named), *(top / named for top in above)) if place.is_dir()), named)
        return vocabulary_in(str(found)), None
    except UserError as error:
        return None, f"{_IDS}: {error.problem}"
    except FileNotFoundError as error:
        return None, f"{_IDS}: {error} is not there (--model names the model's folder)"
    except (OSError, ValueError) as error:
        return None, f"{_IDS}: {error}"


def page(
    store: RunStore,
    shown: Shown,
    samples: Sequence[Sample] | None = None,
    key: Key = "reward",
    ascending: bool = False,
    limit: int = PAGE_SAMPLES,
    model: str | None = None,
) -> str:
    """The page's text.

    Args:
        samples: those to choose from; None: all.
        key, ascending: the order in which the page opens; the reader may change it.
        limit: samples, at most.
        model: see ``vocabulary_of``.
    """
    vocabulary, lacking = vocabulary_of(store, model)
    selection = select(shown.samples if samples is None else samples, key, limit)
    data = page_data(store.url, shown, selection, vocabulary)
    data["sort"], data["ascending"] = key, ascending
    if lacking:
        data["missing"].append(lacking)
    return render(data)


def render(data: dict[str, Any]) -> str:
    """The HTML of ``page_data``'s answer."""
    files = resources.files("relax_core.show")
    style, script = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    title = html.escape(f"{data['title']} · {data['run']}")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'; img-src data:"
    )
    # "<" never stands in the data: no text in it can end the element, or begin another one
    content = dumps(data).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    content = content.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<noscript>This page needs JavaScript, its own only; `relax show` shows rollouts without.</noscript>\n"
        f'<script type="application/json" id="data">{content}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _hash(text: str) -> str:
    """Source expression of an inline element, as Content Security Policy level 2 defines it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
