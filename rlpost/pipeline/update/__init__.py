"""`--update`: the files that are new or changed are written, as one run over all would."""
