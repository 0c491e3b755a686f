"""Studies: many runs from one file, in many processes, with one table at the end.

``file`` reads a study, ``cells`` makes its runs, ``preflight`` checks them, ``search`` chooses
their settings, ``folder`` keeps them, ``pool`` and ``ray`` run them, ``execution`` combines these,
``table`` is the result.
"""
