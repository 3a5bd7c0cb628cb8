"""The patched tree: made from pin, overlays and series, and exported again."""
