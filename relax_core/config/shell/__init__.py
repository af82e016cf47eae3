"""Launch scripts in bash, read without running them.

Guarantee: ``read_launch`` returns what bash would pass to the first training command, but for what the notes name.
"""

from relax_core.config.shell.launch import Launch, Note, read_launch

__all__ = ["Launch", "Note", "read_launch"]
