"""Pictures of the documentation, drawn from what this repository says of itself."""
