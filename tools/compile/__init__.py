"""Extension, wheel and environments."""
