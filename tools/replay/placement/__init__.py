"""The placement benchmark: how few ranges, for how many copies."""
