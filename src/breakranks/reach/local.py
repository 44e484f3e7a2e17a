"""Look at the ranks of this host."""
