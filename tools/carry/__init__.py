"""Carrying the series to another release of upstream."""
