"""An update as bytes, and back: codecs by direction, bytes by setting, sums."""
