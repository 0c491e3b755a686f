"""Settings of a run: sections, defaults, TOML, overrides, contradictions."""
