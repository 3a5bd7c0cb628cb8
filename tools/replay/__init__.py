"""Placement policies for KV blocks, compared on the same requests."""
