"""What the histories of flight recorders show: which ranks have not entered a call, which made another one, which wait
in a ring."""
