from breakranks.cli.main import entry

entry()
