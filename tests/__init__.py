"""A package of this name, so that none that a dependency installs as `tests` comes first."""
