"""Keys of artefacts in Prefect.

Guarantee: a key has lower-case letters, digits and dashes only, which is what Prefect allows.
"""


def artefact_key(run_id: str, what: str) -> str:
    """The key under which ``what`` of a run stands; another one written under it is its next version."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{run_id}-{what}".lower())
