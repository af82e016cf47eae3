"""The shape of data: Arrow schemas, ragged columns, prompt datasets and the run store. Depends on nothing above it."""
