"""`breakranks run`: start a launcher's command, follow the output files of its ranks, and show them in whole lines."""
