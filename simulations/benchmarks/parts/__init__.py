"""Parts of the benchmarks: reference implementations and measurement."""
