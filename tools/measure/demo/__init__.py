"""Paged and tagma side by side: the same requests to a real server of each."""
