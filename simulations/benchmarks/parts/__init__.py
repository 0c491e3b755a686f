"""What the benchmarks are made of: sides to compare with, and measuring."""
