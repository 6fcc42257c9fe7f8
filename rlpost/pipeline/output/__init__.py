"""What a run writes: columns, metadata, files, and the journal of a run that can be resumed."""
