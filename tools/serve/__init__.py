"""A model server of one environment."""
