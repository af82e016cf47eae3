"""The graphs. The body of a flow reads as the algorithm."""
