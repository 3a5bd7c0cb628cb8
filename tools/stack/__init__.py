"""What edits the series, as quilt does."""
