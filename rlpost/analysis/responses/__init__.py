"""Single responses: an index of all, and views of the chosen ones."""
