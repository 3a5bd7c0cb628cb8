"""The transfer benchmark: descriptors between a prefill and a decode pool."""
