"""A run: its directory, its stage records, its engines, and how they are brought back in line after a kill."""
