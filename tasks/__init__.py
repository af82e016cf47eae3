"""One module per stage, one Prefect task each; thin: call relax_core, write an artefact, return its record."""
