"""The command line itself: the group, its options, what commands share."""
