"""One HTML page about rollout files, which opens from disk without a network.

Data flows one way: facts (`rlpost.inspect`), tallies and examples become sections of plain data
(`model`), their charts become SVG, and all of it becomes one page with its own style and script.
What the data says reaches the page as JSON and is put in as text, never as HTML.
"""
