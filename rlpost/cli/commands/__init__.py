"""One module a command, each with a typer `app`; imported only when the command runs."""
