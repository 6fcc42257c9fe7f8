"""The command line: commands, their options and help, and what only they print."""
