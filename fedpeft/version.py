"""The version of fedpeft: nodes of another are refused. The same as in pyproject.toml."""

__version__ = "0.1.0"
