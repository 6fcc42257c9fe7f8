"""One HTML page about rollout files, which opens from disk without a network.

Facts (`analysis.inspect`), totals and examples become sections of plain data, their charts become
SVG, and all of it becomes one page with its own style and script. Text from the data reaches the
page as JSON and is inserted as text, never as HTML.
"""
