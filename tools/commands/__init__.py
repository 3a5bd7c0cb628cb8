"""One module per subcommand; each holds one click command of the module's name."""
