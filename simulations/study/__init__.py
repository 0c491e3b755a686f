"""Studies: many runs from one file, on many processes, with one table at the end.

``file`` reads a study, ``cells`` makes its runs, ``search`` chooses settings for them, ``folder``
keeps them, ``workers`` and ``ray`` run them, ``running`` puts this together, ``table`` is the
result.
"""
