"""The command line. Nothing heavy is imported before a command needs it."""
