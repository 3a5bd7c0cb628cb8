"""What runs in the serving environment; imports its neighbours here only."""

from pathlib import Path

FOLDER = Path(__file__).parent
