"""Upstream's release: its pin, where it comes from, the lock files."""
