"""What a run writes: columns, metadata, files."""
