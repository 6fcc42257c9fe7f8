"""A run in tasks, on a Ray cluster.

Each pass over the input is one task for some of its files. Tasks return rows of the table of
responses; the driver makes the table of them, and reduces it as a run in one process does. Tasks of
the last pass get the table's rows of their files, and write these.
"""
