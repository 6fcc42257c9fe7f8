"""The HTML report about rollout files: one page that opens from disk without a network.

Statistics (`analysis.inspect`), clip counts and examples become sections of plain data, and charts
become SVG. The page has its own style and script. Text of the data is part of the page as JSON and
is inserted as text, never as HTML.
"""
