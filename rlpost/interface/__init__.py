"""The Python interface: the commands as functions of paths or of tables in memory."""
