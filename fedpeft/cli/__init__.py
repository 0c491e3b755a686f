"""The command line: a file for each command of the library, and what commands share."""
