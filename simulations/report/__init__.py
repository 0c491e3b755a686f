"""The report of a study: one HTML page, and its figures as PNG and SVG files.

``content`` reads the study's folder, ``summary`` and ``significance`` are its statistics,
``style``, ``panel``, ``svg`` and ``figures`` draw, ``tables`` says the numbers, and ``page`` puts
all of it together.
"""
