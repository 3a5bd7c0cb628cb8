"""What every package stands on: console, errors, processes, git, files."""
