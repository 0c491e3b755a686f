"""The report of a study: one HTML page, and its figures as PNG and SVG files.

``content`` reads the study's folder, ``summary`` and ``significance`` compute the statistics,
``style``, ``panel``, ``svg`` and ``figures`` draw, ``tables`` builds the tables, and ``page``
renders the page.
"""
