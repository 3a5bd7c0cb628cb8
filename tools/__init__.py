"""The commands that maintain the tagma fork of vLLM."""
