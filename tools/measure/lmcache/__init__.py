"""vLLM with LMCache behind it, for paged and for tagma."""
