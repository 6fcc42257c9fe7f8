"""The commands, each a typer app; a module is imported only when its command runs."""
