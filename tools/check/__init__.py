"""What `make test` runs: the jobs, who runs them side by side, suites and style."""
