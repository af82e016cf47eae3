"""The head and the seal of a run's ``config.yaml``.

Guarantee: a file that was cut off, and one that was changed after Relax wrote it, are told from the one that Relax
wrote, whatever line ends a copy of it has; a file that never had a seal is none of these.
"""

import hashlib
import re
from typing import Literal

HEAD = """\
# The resolved configuration of a run, sealed in the last line. `sources` says where each value that is no default
# comes from; derived and corrected ones follow from others. `relax train --config` reads this file too: to give such
# an option a value here, take its line below `sources` out.
"""

State = Literal["unsealed", "whole", "changed", "cut off"]

_FIRST = HEAD.partition("\n")[0]
_SEAL = re.compile(r"^# seal ([0-9a-f]{16})\n", re.MULTILINE)

CUT_OFF = "is cut off: it does not end with the seal that Relax writes."


def sealed(body: str) -> str:
    """A configuration in YAML as the text of ``config.yaml``."""
    text = HEAD + body
    return f"{text}# seal {_digest(text)}\n"


def state(text: str) -> State:
    """What became of the text of a file since Relax wrote it; `unsealed`: Relax did not."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.startswith(f"{_FIRST}\n"):
        return "unsealed"
    found = _SEAL.search(f"{text}\n")
    if found is None:
        return "cut off"
    unchanged = found[1] == _digest(text[: found.start()]) and not text[found.end() :].strip()
    return "whole" if unchanged else "changed"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
